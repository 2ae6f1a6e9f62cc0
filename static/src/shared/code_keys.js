/** The keys of every code editor here. */

import { defaultKeymap, historyKeymap, indentWithTab } from "@codemirror/commands";

/** CodeMirror's Mod-i selects the surrounding syntax; on this page the key goes to the chat. */
const TAKEN = "Mod-i";

export const codeKeys = [...defaultKeymap.filter(({ key }) => key !== TAKEN), ...historyKeymap, indentWithTab];
