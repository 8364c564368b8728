// Two texts beside each other, row by row: equal passages are folded, and n and p jump from difference to difference.
"use strict";

const compared = { differences: [], at: -1 };

// The elements of a comparison; `headings` are those of the two columns.
function comparison(found, headings) {
  compared.differences = [];
  compared.at = -1;
  const table = element("div", { className: "pair" }, ...headings);
  const sides = headings.map((heading) => heading.textContent.split(":")[0]);
  const note = (textContent) => table.append(element("p", { className: "note", textContent }));
  const newRow = () => sides.map((side) => element("pre", { tabIndex: 0, ariaLabel: side }));
  let row = newRow();
  const ended = () => {
    if (row.some((cell) => cell.textContent)) table.append(...row);
    row = newRow();
  };
  if (found.before) note(`⋯ ${number(found.before)} characters alike ⋯`);
  for (const [kind, one, other, words] of found.parts) {
    if (kind === "folded") {
      ended();
      table.append(fold([one, other], words, newRow));
      continue;
    }
    const pieces = [one, other].map((text, column) => {
      if (kind === "alike" || !text) return text;
      const look = { differs: ["only-kept", "only-removed"][column], around: "around" }[kind];
      return element(kind === "differs" ? "mark" : "span", { className: look, textContent: text });
    });
    pieces.forEach((piece, column) => row[column].append(piece));
    if (kind === "differs") compared.differences.push(pieces.filter((piece) => piece));
  }
  ended();
  const rest = found.after.map((size, column) => (size ? [`${sides[column]}: ${number(size)} characters not compared`] : [])).flat();
  if (rest.length) note(`⋯ ${rest.join(", ")}`);
  return [jumps(), table];
}

function fold(texts, words, newRow) {
  const button = element("button", { type: "button", className: "fold", textContent: `⋯ ${words} alike ⋯`, title: "Show them" });
  button.addEventListener("click", () => {
    const row = newRow();
    row.forEach((cell, column) => cell.append(texts[column]));
    button.replaceWith(...row);
    row[0].focus({ preventScroll: true });
  });
  return button;
}

function jumps() {
  const count = compared.differences.length;
  if (!count) return element("p", { textContent: "No word differs." });
  const place = element("span", { id: "place", role: "status", textContent: count === 1 ? "1 difference" : `${number(count)} differences` });
  const step = (textContent, by, key) => element("button", { type: "button", textContent, title: `Key ${key}`, onclick: () => jump(by) });
  return element("p", { id: "jumps" }, step("Previous difference", -1, "p"), step("Next difference", 1, "n"), place);
}

function jump(by) {
  const count = compared.differences.length;
  if (!count || !$("place")?.isConnected) return;
  for (const mark of compared.differences[compared.at] ?? []) mark.classList.remove("current");
  compared.at = compared.at < 0 && by < 0 ? count - 1 : (compared.at + by + count) % count;
  const marks = compared.differences[compared.at];
  for (const mark of marks) mark.classList.add("current");
  marks[0].scrollIntoView({ block: "center" });
  $("place").textContent = `${number(compared.at + 1)} of ${number(count)} differences`;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input")) return;
  if (event.key === "n") jump(1);
  else if (event.key === "p") jump(-1);
});
