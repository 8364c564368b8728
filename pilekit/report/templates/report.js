"use strict";
const all = (where, what) => [...where.querySelectorAll(what)];
const root = document.documentElement;

document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});

document.getElementById("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const row of all(document, ".sortable tbody tr")) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  }
  for (const label of all(document, ".curves label")) {
    label.hidden = !label.textContent.toLowerCase().includes(wanted);
  }
});

// "1,234", "12.5 %", "4.33 kB", "~0.9–1.1": the first number, with its unit.
const valueOf = (text) => {
  const found = /^[^\d+−-]*([+−-]?[\d,]*\.?\d+)\s*([kMGTP]?)/.exec(text);
  return found ? Number(found[1].replaceAll(",", "").replace("−", "-")) * 1000 ** " kMGTP".indexOf(found[2] || " ") : NaN;
};
for (const table of all(document, ".sortable")) {
  const body = table.tBodies[0];
  all(table, "th").forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const isNumber = all(body, "tr").some((row) => row.cells[column].classList.contains("number"));
    const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : isNumber;
    all(table, "th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = (one, other) => {
      const [a, b] = [one, other].map((row) => row.cells[column].textContent);
      if (!isNumber) return (down ? -1 : 1) * a.localeCompare(b);
      const [x, y] = [valueOf(a), valueOf(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return down ? y - x : x - y;
    };
    body.append(...all(body, "tr").sort(compare));
  }));
}

for (const curves of all(document, ".curves")) {
  const boxes = all(curves, "input");
  const show = () => boxes.forEach((box) => {
    for (const curve of all(curves.parentElement, `[data-curve="${box.value}"]`)) {
      curve.style.display = box.checked ? "" : "none";
    }
  });
  curves.addEventListener("change", show);
  for (const [name, checked] of [["all", true], ["none", false]]) {
    curves.querySelector(`.${name}`).addEventListener("click", () => {
      boxes.forEach((box) => { if (!box.parentElement.hidden) box.checked = checked; });
      show();
    });
  }
}

for (const button of all(document, ".expand")) {
  button.addEventListener("click", () => {
    const details = all(button.closest(".pairs"), "details");
    const open = details.some((one) => !one.open);
    details.forEach((one) => { one.open = open; });
    button.textContent = open ? "close all" : "open all";
  });
}

// A closed <details> does not print.
let closed = [];
addEventListener("beforeprint", () => { closed = all(document, "details:not([open])"); closed.forEach((one) => { one.open = true; }); });
addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
