// Tables that can be sorted by a column: ascending, descending, and as they were.
"use strict";
for (const table of document.querySelectorAll("table.data, table.compared, table.parts")) {
  const body = table.tBodies[0], first = [...body.rows];
  if (first.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, at) => {
    const text = row.cells[at].textContent.trim(), number = Number(text.replace("inf", "Infinity"));
    return text === "" ? [2, 0] : Number.isNaN(number) ? [1, text] : [0, number];
  };
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      const sign = was === "ascending" ? -1 : 1;
      if (was === "descending") return body.append(...first);
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const keyed = first.map((row) => [key(row, at), row]);
      keyed.sort(([[kind, a]], [[other, b]]) => kind - other || sign * (a < b ? -1 : a > b ? 1 : 0));
      body.append(...keyed.map(([, row]) => row));
    });
  });
}
