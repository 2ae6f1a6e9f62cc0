/** What every code editor here does beside showing text: its keys, find and replace, closing brackets. */

import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, historyKeymap, indentWithTab } from "@codemirror/commands";
import { search, searchKeymap } from "@codemirror/search";
import { keymap } from "@codemirror/view";

import { closingQuotes } from "./closing_quotes.js";

/** CodeMirror's Mod-i selects the surrounding syntax; on this page the key goes to the chat. */
const TAKEN = "Mod-i";

export const codeKeys = [
  search({ top: true }),
  closingQuotes,
  closeBrackets(),
  keymap.of([
    ...closeBracketsKeymap,
    ...searchKeymap,
    ...defaultKeymap.filter(({ key }) => key !== TAKEN),
    ...historyKeymap,
    indentWithTab,
  ]),
];
