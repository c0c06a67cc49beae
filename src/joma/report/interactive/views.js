// Maps of layer and head with a slider over steps, and curves that are switched by run, seed or layer.
"use strict";
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const COLOURS = ["#4477aa", "#cc6677", "#228833", "#aa7700", "#aa3377", "#2299bb", "#777777", "#dd7733"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const MISSING = 4095, ABOVE = 4094, BELOW = 4093, HIGHEST = 4092;
const SVG = "http://www.w3.org/2000/svg";

const make = (name, given = {}, ...inside) => {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(given)) one.setAttribute(key, value);
  one.append(...inside);
  return one;
};
const draw = (name, given) => {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(given)) one.setAttribute(key, value);
  return one;
};
const scaled = (low, high, share, log) => log ? low * (high / low) ** share : low + (high - low) * share;
const short = (value) => String(Number(value.toPrecision(4)));

// Two letters a value, one an error: codes of 12 and 6 bits between the limits that the view names.
const read = (view) => {
  const code = (at) => LETTERS.indexOf(view.v[2 * at]) * 64 + LETTERS.indexOf(view.v[2 * at + 1]);
  return {
    share: (at) => { const c = code(at); return c > ABOVE ? NaN : c === ABOVE ? 1 : c === BELOW ? 0 : c / HIGHEST; },
    value: (at) => {
      const c = code(at);
      return c === MISSING ? NaN : c === ABOVE ? Infinity : c === BELOW ? -Infinity
        : scaled(view.low, view.high, c / HIGHEST, view.log);
    },
    words(at) {
      const value = this.value(at);
      if (Number.isNaN(value)) return "not measured";
      if (!Number.isFinite(value)) return value > 0 ? "infinite" : "minus infinite";
      // No more digits than the codes tell apart.
      const gap = view.log ? value * ((view.high / view.low) ** (1 / HIGHEST) - 1) : (view.high - view.low) / HIGHEST;
      const digits = gap > 0 ? Math.min(8, Math.max(0, Math.ceil(-Math.log10(gap)))) : 4;
      const letter = view.e ? LETTERS.indexOf(view.e[at]) : 63;
      const error = letter < 63 ? " \u00b1 " + short(scaled(view.elow, view.ehigh, letter / 62, true)) : "";
      return (Math.abs(value) < 1e-4 && value !== 0 ? short(value) : String(Number(value.toFixed(digits))))
        + error + (view.unit ? " " + view.unit : "");
    },
  };
};
const colour = (share) => {
  if (Number.isNaN(share)) return "transparent";
  const at = Math.min(share * 4, 3.999), low = RAMP[Math.floor(at)], high = RAMP[Math.floor(at) + 1];
  return `rgb(${low.map((one, i) => Math.round(one + (high[i] - one) * (at % 1)))})`;
};
const legend = (view) => {
  const bar = make("span", { class: "ramp", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(90deg,${RAMP.map((one) => `rgb(${one})`)})`;
  return make("p", { class: "soft" }, "A row is a layer, a column a head. " + short(view.low) + " ", bar, ` ${short(view.high)} ${view.unit}`);
};

const showMap = (view, place) => {
  const values = read(view), size = view.rows.length * view.columns.length, cells = [];
  const said = make("p", { class: "said" }, "Point at a cell, or use the arrow keys in the map.");
  let step = view.steps.length - 1, focus = 0;
  const where = (at) => `layer ${view.rows[Math.floor(at / view.columns.length)]}, head ${view.columns[at % view.columns.length]}`;
  const words = (at) => `${where(at)}: ${values.words(step * size + at)}`;
  const course = draw("svg", { viewBox: "0 0 600 120", class: "course", role: "img" });
  const tell = (at) => {
    focus = at;
    said.textContent = (view.steps.length > 1 ? `step ${view.steps[step]}, ` : "") + words(at);
    if (view.steps.length < 2) return;
    course.replaceChildren(line(view.steps.map((_, i) => values.share(i * size + at)), view.steps, 600, 120, COLOURS[0]));
    course.append(draw("line", { ...mark(view.steps, step, 600), y1: 0, y2: 120, stroke: "currentColor", "stroke-dasharray": 4 }));
    course.setAttribute("aria-label", `course of ${where(at)} from step ${view.steps[0]} to ${view.steps.at(-1)}`);
  };
  const head = make("tr", {}, make("td"), ...view.columns.map((name) => make("th", { scope: "col" }, name)));
  const grid = make("table", { role: "grid", class: "map", "aria-label": view.name }, make("thead", {}, head), make("tbody"));
  view.rows.forEach((name, row) => {
    const line = make("tr", {}, make("th", { scope: "row" }, name));
    view.columns.forEach((_, column) => {
      const cell = make("td", { role: "gridcell", tabindex: cells.length ? -1 : 0 }), at = row * view.columns.length + column;
      cell.addEventListener("focus", () => tell(at));
      cell.addEventListener("pointerenter", () => tell(at));
      cells.push(cell);
      line.append(cell);
    });
    grid.tBodies[0].append(line);
  });
  grid.addEventListener("keydown", (event) => {
    const at = cells.indexOf(event.target), wide = view.columns.length, column = at % wide;
    const to = { ArrowRight: column + 1 < wide ? at + 1 : -1, ArrowLeft: column ? at - 1 : -1, ArrowDown: at + wide,
      ArrowUp: at - wide, Home: at - column, End: at - column + wide - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (!cells[to]) return;
    cells[at].tabIndex = -1;
    cells[to].tabIndex = 0;
    cells[to].focus();
  });
  const paint = () => cells.forEach((cell, at) => {
    cell.style.background = colour(values.share(step * size + at));
    cell.setAttribute("aria-label", words(at));
  });
  paint();
  place.append(make("div", { class: "scroll" }, grid), legend(view), said);
  if (view.steps.length < 2) return;
  const slider = make("input", { type: "range", min: 0, max: step, value: step, "aria-valuetext": `step ${view.steps[step]}` });
  const shown = make("output", {}, String(view.steps[step]));
  slider.addEventListener("input", () => {
    step = Number(slider.value);
    shown.value = view.steps[step];
    slider.setAttribute("aria-valuetext", `step ${view.steps[step]}`);
    paint();
    tell(focus);
  });
  place.prepend(make("p", {}, make("label", {}, "step ", slider), " ", shown));
  place.append(course);
};

const across = (steps, at, wide) => 2 + (wide - 4) * (steps[at] - steps[0]) / (steps.at(-1) - steps[0] || 1);
const mark = (steps, at, wide) => { const x = across(steps, at, wide); return { x1: x, x2: x }; };
const line = (shares, steps, wide, high, stroke) => {
  let path = "", pen = "M";
  shares.forEach((share, at) => {
    // A value that was not measured at this moment leaves no gap; a run that ends, ends.
    if (Number.isNaN(share)) return;
    path += `${pen}${across(steps, at, wide).toFixed(1)} ${(high - 3 - (high - 6) * share).toFixed(1)}`;
    pen = "L";
  });
  return draw("path", { d: path, fill: "none", stroke, "stroke-width": 1.6 });
};

const showCurves = (view, place) => {
  const values = read(view), size = view.steps.length, off = new Set(), names = Object.keys(view.by);
  const main = names.find((name) => name !== "run" && name !== "seed") || names[0];
  const level = (number, name) => view.by[name][view.lines[number][names.indexOf(name)]];
  const title = (number) => names.map((name) => `${name} ${level(number, name)}`).join(", ");
  const stroke = (number) => COLOURS[main ? view.lines[number][names.indexOf(main)] % COLOURS.length : 0];
  const plot = draw("svg", { viewBox: "0 0 640 260", class: "course", tabindex: 0, role: "img" });
  const said = make("p", { role: "status", class: "said" }, "Point at the curves, or use the arrow keys in them.");
  let step = size - 1;
  const visible = () => view.lines.map((_, i) => i).filter((i) => names.every((name) => !off.has(name + level(i, name))));
  const paint = () => {
    plot.replaceChildren();
    for (const i of visible()) {
      const own = line(view.steps.map((_, at) => values.share(i * size + at)), view.steps, 640, 260, stroke(i));
      const name = draw("title", {});
      name.textContent = title(i);
      own.append(name);
      plot.append(own);
    }
    plot.append(draw("line", { ...mark(view.steps, step, 640), y1: 0, y2: 260, stroke: "currentColor", "stroke-dasharray": 4 }));
    plot.setAttribute("aria-label", `${view.name}, ${visible().length} curves over ${view.axis} ${view.steps[0]} to ${view.steps.at(-1)}`);
  };
  const tell = () => {
    const told = visible().filter((i) => !Number.isNaN(values.value(i * size + step)));
    const more = told.length > 12 ? `; and ${told.length - 12} more` : "";
    said.textContent = `${view.axis} ${view.steps[step]}: ` + (told.slice(0, 12).map((i) => `${title(i)}${names.length ? ": " : ""}${values.words(i * size + step)}`).join("; ") || "nothing was measured") + more;
    paint();
  };
  plot.addEventListener("keydown", (event) => {
    const to = { ArrowRight: step + 1, ArrowLeft: step - 1, Home: 0, End: size - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    step = Math.min(size - 1, Math.max(0, to));
    tell();
  });
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) * 640 / box.width;
    const far = (at) => Math.abs(across(view.steps, at, 640) - x);
    step = view.steps.reduce((best, _, at) => far(at) < far(best) ? at : best, 0);
    tell();
  });
  for (const name of names) {
    const field = make("fieldset", {}, make("legend", {}, name));
    view.by[name].forEach((one, number) => {
      const box = make("input", { type: "checkbox", checked: "" }), label = make("label", {}, box, one);
      if (name === main) label.style.borderColor = COLOURS[number % COLOURS.length];
      box.addEventListener("change", () => {
        off[box.checked ? "delete" : "add"](name + one);
        tell();
      });
      field.append(label);
    });
    place.append(field);
  }
  paint();
  place.append(plot, make("p", { class: "soft" }, `From left to right ${view.axis} ${view.steps[0]} to ${view.steps.at(-1)}, upward ${short(view.low)} to ${short(view.high)}${view.unit && " " + view.unit}${view.log ? ", logarithmic" : ""}.`), said);
};

for (const data of document.querySelectorAll("script.views")) {
  const views = JSON.parse(data.textContent), place = make("div"), choice = make("select");
  views.forEach((view, number) => choice.append(make("option", { value: number }, view.name)));
  const show = () => {
    const view = views[choice.value], note = make("p", { class: "soft" }, view.note);
    place.replaceChildren();
    (view.rows ? showMap : showCurves)(view, place);
    place.append(note);
  };
  choice.addEventListener("change", show);
  show();
  data.after(make("div", { class: "explore" }, make("h3", {}, "Single values"), make("p", {}, make("label", {}, "shown ", choice)), place));
}
