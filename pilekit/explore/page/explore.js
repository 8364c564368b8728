// The page of `pilekit explore`. Everything from the corpus is shown by textContent: nothing of it is ever HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const state = { view: "documents", subset: null, corpus: null, turn: 0 };

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

async function ask(question, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== false);
  const answer = await fetch(`api/${question}?${new URLSearchParams(given)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// Only the newest question of a kind may show its answer.
async function showing(task) {
  const turn = ++state.turn;
  try {
    await task(() => turn !== state.turn);
  } catch (error) {
    if (turn === state.turn) $("status").textContent = error.message;
  }
}

function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; size >= 999.5 && unit < 4; unit++) size /= 1000;
  return `${unit ? size.toPrecision(3) : size} ${units[unit]}`;
}

function shownSubset(label) {
  return state.corpus.shown[label] ?? label;
}

function chooseView(view) {
  state.view = view;
  for (const button of $("views").children) button.ariaPressed = String(button.dataset.view === String(view));
  const removed = view === "duplicates" ? state.corpus.removed : state.corpus.cuts[view]?.subsets;
  const subsets = removed ? removed.map((label) => ({ label })) : state.corpus.subsets;
  if (!subsets.some((one) => one.label === state.subset)) state.subset = null;
  const all = { label: null, documents: removed ? undefined : state.corpus.documents };
  const whole = view === "scored" || view === "results" || tracesOf(view) !== null;
  $("subsets").replaceChildren(...(whole ? [] : [all, ...subsets]).map(subsetButton));
  $("subsets").parentElement.hidden = whole;
  $("search").hidden = view !== "documents";
  refresh();
}

// The place of the file of traces that a view shows, or null.
const tracesOf = (view) => (String(view).startsWith("traces") ? Number(String(view).slice(6)) : null);

function subsetButton({ label, documents, bytes: size }) {
  const button = element("button", { type: "button" }, element("b", { textContent: label === null ? "All subsets" : shownSubset(label) }));
  if (documents !== undefined) button.append(element("small", { textContent: number(documents) + (size === undefined ? "" : `, ${bytes(size)}`) }));
  button.ariaPressed = String(label === state.subset);
  button.addEventListener("click", () => {
    state.subset = label;
    for (const one of $("subsets").querySelectorAll("button")) one.ariaPressed = String(one === button);
    refresh();
  });
  return element("li", {}, button);
}

function refresh() {
  $("found").replaceChildren();
  $("more").replaceChildren();
  $("status").textContent = "";
  $("shown").replaceChildren(element("p", { textContent: "Choose from the list." }));
  if (state.view === "duplicates") showing(listPairs);
  else if (state.corpus.cuts[state.view]) showing((stale) => listCuts(0, stale));
  else if (tracesOf(state.view) !== null) showing((stale) => listTexts(tracesOf(state.view), 0, stale));
  else if (state.view === "results") listResults();
  else if (state.view === "scored") showing((stale) => listPage("scored", 0, stale));
  else if ($("words").value) showing((stale) => search(0, 0, stale));
  else showing((stale) => listPage("documents", 0, stale));
}

async function listPage(question, start, stale) {
  const found = await ask(question, { subset: question === "scored" ? null : state.subset, start });
  if (stale()) return;
  const buttons = found.documents.map((one) => documentButton(one, ""));
  showPage(buttons, found, "document", (place) => showing((late) => listPage(question, place, late)), question === "documents");
}

// A page of a list, with the buttons to other pages; `goTo` shows the page from a place on.
function showPage(buttons, { start, of }, noun, goTo, anywhere) {
  const end = start + buttons.length;
  $("found").replaceChildren(...buttons);
  $("status").textContent = of ? `${number(start + 1)} to ${number(end)} of ${number(of)}` : `no ${noun}`;
  const step = (textContent, place) => element("button", { type: "button", textContent, onclick: () => goTo(place) });
  $("more").replaceChildren(
    ...(start ? [step("Earlier", Math.max(0, start - 50))] : []),
    ...(end < of ? [step("Further", end)] : []),
    ...(of > 50 && anywhere ? [step("Anywhere", Math.floor(Math.random() * (of - 1)))] : []),
  );
  $("list").scrollTop = 0;
}

// A second at a time, until fifty more are found.
async function search(start, before, stale) {
  const words = $("words").value;
  let next = start;
  let count = 0;
  while (next !== null && count < 50) {
    const found = await ask("search", { text: words, subset: state.subset, start: next });
    if (stale()) return;
    $("found").append(...found.documents.map((one) => documentButton(one, words)));
    count += found.documents.length;
    next = found.next;
    const share = next === null ? "all searched" : `${((100 * next) / found.of).toFixed(1)} % searched`;
    $("status").textContent = `${number(before + count)} found, ${share}`;
  }
  const further = () => showing((late) => search(next, before + count, late));
  $("more").replaceChildren(...(next === null ? [] : [element("button", { type: "button", textContent: "Search on", onclick: further })]));
}

function documentButton(one, words) {
  const rate = one.rate === undefined ? "" : `, ${one.rate.toFixed(3)} bits per byte`;
  const place = `${one.name} ${one.number} · ${one.subset} · ${bytes(one.bytes)}${rate}`;
  const button = element("button", { type: "button" }, element("small", { textContent: place }));
  if (one.beginning) button.append(marked(element("span"), one.beginning, words));
  button.addEventListener("click", () => open(button, (stale) => showDocument(one, words, stale)));
  return element("li", {}, button);
}

async function open(button, task) {
  for (const one of $("found").querySelectorAll("[aria-pressed=true]")) one.ariaPressed = "false";
  button.ariaPressed = "true";
  const turn = (state.opened = (state.opened ?? 0) + 1);
  try {
    await task(() => turn !== state.opened);
  } catch (error) {
    $("shown").replaceChildren(element("p", { className: "error", textContent: error.message }));
  }
  $("shown").scrollIntoView({ block: "nearest" });
  $("shown").scrollTop = 0;
  $("shown").querySelector("mark.sought")?.scrollIntoView({ block: "center" });
}

// Appends the text with the words that were searched for in <mark>.
function marked(into, text, words) {
  const [hay, needle] = [text.toLowerCase(), words.toLowerCase()];
  let end = 0;
  if (needle && hay.length === text.length) {
    for (let at = hay.indexOf(needle); at >= 0; at = hay.indexOf(needle, end)) {
      into.append(text.slice(end, at), element("mark", { className: "sought", textContent: text.slice(at, at + needle.length) }));
      end = at + needle.length;
    }
  }
  into.append(text.slice(end));
  return into;
}

// A document; `start` and `end` are characters to mark, and `back` is what a button leads back to.
async function showDocument({ shard, number: of, start, end }, words, stale, back = null) {
  const found = await ask("document", { shard, number: of, ...(end === undefined ? {} : { start, end }) });
  if (stale()) return;
  const facts = [`${found.subset}, ${number(found.bytes)} bytes`];
  const shown = found.from ? `${number(found.shown)} characters from ${number(found.from)} on` : `the first ${number(found.shown)}`;
  if (found.shown < found.characters) facts.push(`${shown} of ${number(found.characters)} characters`);
  const text = element("pre", { tabIndex: 0 });
  const parts = [element("h2", { textContent: `${found.name} ${found.number}` })];
  if (found.tokens) {
    const scored = found.tokens.some((token) => token[3] !== null);
    facts.push(`${number(found.tokens.length)} tokens`);
    if (found.rate !== null) facts.push(`${found.rate.toFixed(3)} bits per byte`);
    else if (state.corpus.bits) facts.push("not scored");
    const spans = found.tokens.map((token, place) => tokenSpan(token, place, scored));
    const [first, last] = found.marked ?? [0, 0];
    text.append(...spans.slice(0, first));
    if (first < last) text.append(element("mark", { className: "sought" }, ...spans.slice(first, last)));
    text.append(...spans.slice(last));
  }
  if (found.text) marked(text, found.text, words);
  if (found.around) text.append(found.around[0], element("mark", { className: "sought", textContent: found.around[1] }), found.around[2]);
  parts.push(element("p", { textContent: facts.join(" · ") }));
  const meta = Object.entries(found.meta).map(([key, value]) => [element("dt", { textContent: key }), element("dd", { textContent: value })]);
  if (meta.length) parts.push(element("dl", {}, ...meta.flat()));
  parts.push(...fate(found));
  if (found.tokens?.some((token) => token[3] !== null)) parts.push(legend());
  if (back) parts.unshift(element("p", {}, opener(back.name, back.task)));
  $("shown").replaceChildren(...parts, text);
}

// Ten levels: 0 to 9 bits for each byte of the token.
const level = (rate) => Math.min(9, Math.max(0, Math.floor(rate)));

function tokenSpan([text, id, size, bits], place, scored) {
  const span = element("span", { textContent: text });
  span.title = `token ${place}: id ${id}, ${size} bytes`;
  if (bits !== null) {
    span.title += `, ${bits.toFixed(3)} bits` + (size ? `, ${(bits / size).toFixed(3)} bits per byte` : "");
    span.className = `bits${level(bits / Math.max(size, 1))}`; // a token may have no byte of the text
  } else span.className = scored ? "unscored" : `token${place % 4}`;
  if (!text) span.classList.add("part"); // of a character
  return span;
}

function legend() {
  const levels = Array.from({ length: 10 }, (_, at) => element("span", { className: `bits${at}`, textContent: at === 9 ? "9 or more" : String(at) }));
  return element("p", { className: "legend" }, "bits per byte of a token: ", ...levels);
}

const likeness = (pair) => (pair.reason === "exact" ? "exact copy" : `similarity ${pair.similarity.toFixed(4)}`);

function listResults() {
  const buttons = state.corpus.results.map((one, place) => {
    const button = element("button", { type: "button" }, element("small", { textContent: one.title }), element("span", { textContent: one.path }));
    button.addEventListener("click", () => open(button, (stale) => showResult(one, place, stale)));
    return button;
  });
  $("found").replaceChildren(...buttons.map((button) => element("li", {}, button)));
  if (buttons.length === 1) buttons[0].click();
}

// The page of a report, in a frame that has no rights here: it holds its own policy.
async function showResult({ title, path }, place, stale) {
  const waits = element("p", { textContent: "drawing …" });
  const frame = element("iframe", { title: `${title}: ${path}`, src: `api/result?place=${place}`, onload: () => waits.remove() });
  frame.sandbox = "allow-scripts";
  const found = await ask("trained", { place });
  if (stale()) return;
  const corpus = found.corpus === null ? [] : [element("p", {}, `Trained on ${found.corpus} `, ...documents(found.shards))];
  $("shown").replaceChildren(...corpus, waits, frame);
}

// A button to the documents of a run, if some of its shards are browsed.
function documents(shards) {
  const textContent = `${number(shards)} of its shards ${shards === 1 ? "is" : "are"} here`;
  return shards ? [element("button", { type: "button", textContent, onclick: () => chooseView("documents") })] : [];
}

async function listPairs(stale) {
  const found = await ask("pairs", { subset: state.subset });
  if (stale()) return;
  $("status").textContent = found.of ? `${number(found.pairs.length)} of ${number(found.of)} removed documents, the least similar first` : "no document was removed";
  $("found").replaceChildren(
    ...found.pairs.map((pair) => {
      const button = element("button", { type: "button" }, element("small", { textContent: `${pair.subset} · ${pair.kept_subset}` }));
      button.append(element("span", { textContent: `${likeness(pair)}: ${pair.shard} ${pair.number}` }));
      button.addEventListener("click", () => open(button, (late) => showPair(pair, late)));
      return element("li", {}, button);
    }),
  );
}

async function listCuts(start, stale) {
  const folder = state.view;
  const found = await ask("cuts", { folder, subset: state.subset, start });
  if (stale()) return;
  const buttons = found.cuts.map((cut, place) => {
    const button = element("button", { type: "button" }, element("small", { textContent: `${cut.subset} · ${cut.source}` }));
    button.append(element("span", { textContent: `${cut.how}: ${cut.shard} ${cut.number}` }));
    const key = { folder, subset: state.subset, place: start + place };
    button.addEventListener("click", () => open(button, (late) => showCut(key, late)));
    return element("li", {}, button);
  });
  showPage(buttons, found, "cut", (place) => showing((late) => listCuts(place, late)), true);
}

async function showPair(row, stale) {
  const pair = await ask("pair", { shard: row.key, number: row.number });
  if (stale()) return;
  const kept = heading("kept", `${pair.kept_shard} ${pair.kept_number}, ${pair.kept_subset}`, pair.kept_here, pair.kept_number);
  const removed = heading("removed", `${pair.shard} ${pair.number}, ${pair.subset}`, pair.here, pair.number);
  $("shown").replaceChildren(element("h2", { textContent: likeness(pair) }), ...comparison(pair, [kept, removed]));
}

async function showCut(key, stale) {
  const cut = await ask("cut", key);
  if (stale()) return;
  const stays = heading("stays", cut.of[0], cut.kept_here, cut.kept_number);
  const from = heading("cut", cut.of[1], cut.here, cut.number);
  $("shown").replaceChildren(element("h2", { textContent: cut.how }), ...comparison(cut, [stays, from]));
}

// The head of a column; a document of this corpus is opened from it.
function heading(side, text, shard, of) {
  const name = shard === null ? text : opener(text, (stale) => showDocument({ shard, number: of }, "", stale));
  return element("h3", {}, `${side}: `, name);
}

// A button that shows something else in place of the document.
function opener(textContent, task) {
  const button = element("button", { type: "button", textContent });
  button.addEventListener("click", () => open(button, task));
  return button;
}

// What became of a document: its duplicates, and what was cut out of it.
function fate({ duplicates, cuts }) {
  const parts = [];
  if (duplicates) parts.push(...cluster(duplicates));
  cuts.forEach(({ title, cuts: rows, key }, folder) => {
    const item = (row, place) => {
      const show = opener("Compare", (stale) => showCut({ folder, place, shard: key, number: row.number }, stale));
      return element("li", {}, `${row.how}, as in ${row.source} `, show);
    };
    if (rows.length) parts.push(element("p", { textContent: `${title}: ${rows.length === 50 ? "the first " : ""}${rows.length} cut out` }));
    if (rows.length) parts.push(element("ul", { className: "fate" }, ...rows.map(item)));
  });
  return parts;
}

function cluster({ removed, cluster: rows, of }) {
  if (!of) return [element("p", { textContent: "Kept: no duplicate of it was removed." })];
  const copies = `${number(of)} ${of === 1 ? "document was" : "documents were"}`;
  const said = removed ? `Removed: it resembles a kept document, ${likeness(removed)}. ${copies} removed for that one.` : `Kept: ${copies} removed for it.`;
  const place = (shard, name, of) => (shard === null ? name : opener(name, (stale) => showDocument({ shard, number: of }, "", stale)));
  const item = (row) => {
    const own = removed && row.key === removed.key && row.number === removed.number ? "this document, " : "";
    const compare = opener("Compare", (stale) => showPair(row, stale));
    return element("li", {}, `removed, ${own}${likeness(row)}: `, place(row.here, `${row.shard} ${row.number}`, row.number), `, ${row.subset} `, compare);
  };
  const [first] = rows;
  const kept = element("li", {}, "kept: ", place(removed ? first.kept_here : null, `${first.kept_shard} ${first.kept_number}`, first.kept_number), `, ${first.kept_subset}`);
  const rest = of > rows.length ? [element("li", { textContent: `and ${number(of - rows.length)} more` })] : [];
  return [element("p", { textContent: said }), element("ul", { className: "fate" }, kept, ...rows.map(item), ...rest)];
}

async function start() {
  state.corpus = await ask("corpus");
  document.title = `${state.corpus.shards[0] ?? state.corpus.results[0].path} · pilekit explore`;
  const views = state.corpus.documents === null ? [] : [["documents", "Documents"]];
  if (state.corpus.removed !== null) views.push(["duplicates", "Duplicates"]);
  state.corpus.cuts.forEach(({ title }, folder) => views.push([folder, title]));
  state.corpus.traces.forEach((title, place) => views.push([`traces${place}`, title]));
  if (state.corpus.bits) views.push(["scored", "Scored"]);
  if (state.corpus.results.length) views.push(["results", "Results"]);
  $("views").replaceChildren(
    ...views.map(([view, textContent]) => {
      const button = element("button", { type: "button", textContent, onclick: () => chooseView(view) });
      button.dataset.view = view;
      return button;
    }),
  );
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    refresh();
  });
  chooseView(views[0][0]);
}

start().catch((error) => ($("status").textContent = error.message));
