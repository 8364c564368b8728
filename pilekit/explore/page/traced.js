// Traced texts: their passages in colour, and the documents that have a passage.
"use strict";

const words = (count) => `${number(count)} ${count === 1 ? "word" : "words"}`;
const inDocuments = (passage) => `${words(passage.words)} in ${number(passage.documents)} ${passage.documents === 1 ? "document" : "documents"}`;

// A share in per cent; none that is not 0 is shown as 0.
function percentage(share) {
  const text = (100 * share).toFixed(2);
  return share > 0 && text === "0.00" ? "<0.01 %" : `${text} %`;
}

function copied(row, passages) {
  return `${percentage(row.coverage)} of ${words(row.words)} in ${number(passages)} ${passages === 1 ? "passage" : "passages"}`;
}

async function listTexts(folder, start, stale) {
  const found = await ask("texts", { folder, start });
  if (stale()) return;
  const buttons = found.texts.map((row) => {
    const button = element("button", { type: "button" }, element("small", { textContent: `text ${number(row.number)} · ${copied(row, row.passages)}` }));
    button.append(element("span", { textContent: row.beginning }));
    button.addEventListener("click", () => open(button, (late) => showText({ folder, number: row.number }, null, late)));
    return element("li", {}, button);
  });
  showPage(buttons, found, "text", (place) => showing((late) => listTexts(folder, place, late)), false);
}

// A text; the passage of this place is chosen, if it is not null.
async function showText(key, chosen, stale) {
  const found = await ask("text", key);
  if (stale()) return;
  const facts = [copied(found, found.of)];
  if (found.shown < found.characters) facts.push(`the first ${number(found.shown)} of ${number(found.characters)} characters`);
  const panel = element("div", { id: "passage", role: "region", ariaLabel: "Documents with the passage", hidden: true });
  const choose = (place) => choosePassage(key, place, panel);
  const text = element("pre", { tabIndex: 0 });
  for (const [part, start, end, place, common] of found.pieces) text.append(place === null ? part : mark(part, start, end, common, () => choose(place)));
  const item = (passage, place) => element("li", {}, element("button", { type: "button", textContent: `${inDocuments(passage)}${passage.common ? ", common" : ""}`, onclick: () => choose(place) }), ` ${passage.beginning}`);
  const rest = found.of > found.passages.length ? [element("li", { textContent: `and ${number(found.of - found.passages.length)} more` })] : [];
  const list = found.of ? [legendOfPassages(), element("ul", { className: "fate" }, ...found.passages.map(item), ...rest)] : [];
  $("shown").replaceChildren(element("h2", { textContent: `text ${number(found.number)}` }), element("p", { textContent: facts.join(" · ") }), ...list, panel, text);
  if (chosen !== null) await choose(chosen);
}

function legendOfPassages() {
  const colours = [element("mark", { className: "copied", textContent: "in documents" }), " ", element("mark", { textContent: "common: in so many that none is listed" })];
  return element("p", {}, "Click a passage to see its documents: ", ...colours);
}

function mark(textContent, start, end, common, choose) {
  const piece = element("mark", { textContent, className: common ? "" : "copied", tabIndex: 0, role: "button", onclick: choose });
  piece.addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose();
  });
  Object.assign(piece.dataset, { start, end });
  return piece;
}

// Shows the documents of a passage in the panel of its text.
async function choosePassage(key, place, panel) {
  const turn = (state.chosen = (state.chosen ?? 0) + 1);
  try {
    const found = await ask("passage", { ...key, place });
    if (turn !== state.chosen || !panel.isConnected) return;
    for (const piece of $("shown").querySelectorAll("pre mark")) {
      const inside = Number(piece.dataset.start) >= found.start && Number(piece.dataset.end) <= found.end;
      piece.classList.toggle("current", inside);
    }
    const back = { name: `Back to text ${number(key.number)}`, task: (stale) => showText(key, place, stale) };
    panel.replaceChildren(...documentsOf(found, back));
  } catch (error) {
    panel.replaceChildren(element("p", { className: "error", textContent: error.message }));
  }
  panel.hidden = false;
}

function documentsOf(found, back) {
  const title = [inDocuments(found)];
  if (found.places.length && found.places.length < found.documents) title.push(`the first ${number(found.places.length)}`);
  const items = found.places.map((at) => {
    const name = `${at.shard} ${at.number}`;
    const task = (stale) => showDocument({ ...at, shard: at.here }, "", stale, back);
    const facts = [at.subset, at.exact ? "" : "other capitals or marks", found.corpus && at.here === null ? "not in the browsed corpus" : ""];
    const around = [element("i", { textContent: `${at.before} ` }), at.text, element("i", { textContent: ` ${at.after}` })];
    return element("li", {}, at.here === null ? name : opener(name, task), ` ${facts.filter((fact) => fact).join(" · ")}`, element("p", {}, ...around));
  });
  const common = found.common ? [element("p", { textContent: "A passage that so many documents have is common: none is listed." })] : [];
  return [element("h3", { textContent: title.join(", ") }), ...common, element("ul", {}, ...items)];
}
