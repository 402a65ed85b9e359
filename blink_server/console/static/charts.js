// Small charts in SVG. What they show is also told in text beside them, so they are hidden from
// screen readers.

import { svg } from "./dom.js";

const HEIGHT = 26;

/** A line over the last minutes; `update(values)` draws it anew, null is a gap. */
export function sparkline(length) {
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const element = svg(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${length - 1} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    area,
    line,
  );
  const update = (values) => {
    const top = Math.max(...values.filter((value) => value !== null), 0) || 1;
    const x0 = length - values.length;
    const y = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    const runs = pieces(values);
    const points = (run) => run.map(([place, value]) => `${x0 + place} ${y(value)}`).join("L");
    line.setAttribute("d", runs.map((run) => `M${points(run)}`).join(""));
    area.setAttribute(
      "d",
      runs
        .map((run) => {
          const [first, last] = [x0 + run[0][0], x0 + run.at(-1)[0]];
          return `M${first} ${HEIGHT}L${points(run)}L${last} ${HEIGHT}Z`;
        })
        .join(""),
    );
  };
  return { element, update };
}

function pieces(values) {
  const runs = [];
  values.forEach((value, place) => {
    if (value === null) return;
    if (place === 0 || values[place - 1] === null) runs.push([]);
    runs.at(-1).push([place, value]);
  });
  return runs;
}

/** Three quantiles on a logarithmic axis from `low` to `high`. */
export function rangePlot([p50, p95, p99], low, high) {
  const x = (value) => (Math.log(value / low) / Math.log(high / low)) * 196 + 2;
  const decades = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power++) {
    const at = x(10 ** power);
    decades.push(svg("line", { class: "tick", x1: at, x2: at, y1: 0, y2: 16 }));
  }
  const bar = (from, to, name) =>
    svg("line", { class: name, x1: x(from), x2: x(to), y1: 8, y2: 8 });
  return svg(
    "svg",
    { class: "range", viewBox: "0 0 200 16", preserveAspectRatio: "none", "aria-hidden": "true" },
    ...decades,
    bar(p50, p99, "thin"),
    bar(p50, p95, "thick"),
    svg("line", { class: "median", x1: x(p50), x2: x(p50), y1: 2, y2: 14 }),
  );
}
