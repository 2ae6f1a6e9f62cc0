/** The six colours that code is shown in, the same in the editor and in the output. */

import { tagHighlighter, tags } from "@lezer/highlight";

export const PALETTE = /** @type {const} */ (["keyword", "string", "number", "comment", "definition", "type"]);

/** Gives each token of a syntax tree the class `code-<name>` of a palette entry, or none. */
export const highlighter = tagHighlighter([
  { tag: [tags.keyword, tags.operatorKeyword, tags.bool, tags.null, tags.self], class: "code-keyword" },
  { tag: [tags.string, tags.regexp, tags.special(tags.string)], class: "code-string" },
  { tag: tags.number, class: "code-number" },
  { tag: tags.comment, class: "code-comment" },
  {
    tag: [
      tags.definition(tags.function(tags.variableName)),
      tags.function(tags.definition(tags.variableName)),
      tags.definition(tags.className),
      tags.definition(tags.propertyName),
    ],
    class: "code-definition",
  },
  { tag: [tags.typeName, tags.className, tags.meta], class: "code-type" },
]);
