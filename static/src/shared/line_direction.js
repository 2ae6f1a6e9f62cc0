/**
 * Lines of a right-to-left script are set from the right, each by its first letter, as the output sets them.
 * Only lines that have such a letter are marked: code has none, and its lines stay as they are.
 */

import { RangeSetBuilder } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin } from "@codemirror/view";

const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;
const mark = Decoration.line({ attributes: { dir: "auto" } });

/** @param {EditorView} view */
function marks(view) {
  /** @type {RangeSetBuilder<Decoration>} */
  const builder = new RangeSetBuilder();
  const { doc } = view.state;
  let done = -1; // two visible ranges may share a line
  for (const { from, to } of view.visibleRanges) {
    for (let at = from; at <= to; ) {
      const line = doc.lineAt(at);
      if (line.from > done && RIGHT_TO_LEFT.test(line.text)) builder.add(line.from, line.from, mark);
      done = Math.max(done, line.from);
      at = line.to + 1;
    }
  }
  return builder.finish();
}

class LineDirections {
  /** @param {EditorView} view */
  constructor(view) {
    this.marks = marks(view);
  }

  /** @param {import("@codemirror/view").ViewUpdate} update */
  update({ docChanged, viewportChanged, view }) {
    if (docChanged || viewportChanged) this.marks = marks(view);
  }
}

export const lineDirection = [
  EditorView.perLineTextDirection.of(true),
  ViewPlugin.fromClass(LineDirections, { decorations: ({ marks }) => marks }),
];
