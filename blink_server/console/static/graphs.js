// The graph grid as a heat map: a table whose cells are shaded by how often a graph was launched.

import { byId, h, moved, setText } from "./dom.js";
import { count } from "./format.js";

const SHADES = 7;
const READABLE_COLUMNS = 16; // with more of them numbers are told only when a cell is pointed at

/** `update(graphs)`: {"phase:sequences:tokens:rows": launches}; rows only of mixed graphs. */
export function graphGrid() {
  let keys = "";
  let cells = new Map();
  return (graphs) => {
    const text = Object.keys(graphs).join();
    if (text !== keys) {
      keys = text;
      cells = build(graphs);
    }
    const most = { decode: 1, prefill: 1, mixed: 1 }; // each grid has shades of its own
    for (const [key, launches] of Object.entries(graphs)) {
      const [phase] = key.split(":");
      most[phase] = Math.max(most[phase], launches);
    }
    for (const [key, launches] of Object.entries(graphs)) {
      const cell = cells.get(key);
      const share = Math.log1p(launches) / Math.log1p(most[key.split(":")[0]]);
      const shade = Math.min(SHADES, Math.ceil(SHADES * share));
      if (cell.dataset.heat !== String(shade)) cell.dataset.heat = shade;
      setText(cell.firstChild, count(launches));
      cell.dataset.launches = launches;
    }
  };
}

function build(graphs) {
  const found = Object.keys(graphs).map((key) => {
    const [phase, ...numbers] = key.split(":");
    const [sequences, tokens, rows] = numbers.map(Number);
    return { key, phase, sequences, tokens, rows };
  });
  const cells = new Map();
  const of = (phase) => found.filter((graph) => graph.phase === phase);
  const prompts = (graph) => [graph.sequences, graph.tokens];
  const mixed = of("mixed"); // not every engine has them
  byId("graph-grids").replaceChildren(
    grid("Decode", "", "rows", of("decode"), cells, (graph) => [0, graph.sequences]),
    grid("Prefill", "sequences", "tokens", of("prefill"), cells, prompts),
    ...(mixed.length === 0
      ? []
      : [grid("Mixed", "rows", "tokens", mixed, cells, (graph) => [graph.rows, graph.tokens])]),
  );
  return cells;
}

const unique = (values) => [...new Set(values)].sort((a, b) => a - b);

function grid(name, down, across, graphs, cells, place) {
  if (graphs.length === 0) return h("p", { class: "muted" }, `${name}: no graphs`);
  const rows = unique(graphs.map((graph) => place(graph)[0]));
  const columns = unique(graphs.map((graph) => place(graph)[1]));
  const dense = columns.length > READABLE_COLUMNS;
  const at = new Map(graphs.map((graph) => [place(graph).join(), graph]));
  const corner = rows[0] === 0 ? across : `${down} \\ ${across}`;
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, corner),
    ...columns.map((column) => h("th", { scope: "col" }, h("span", {}, count(column)))),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, row === 0 ? "launches" : String(row)),
      ...columns.map((column) => cellOf(at.get([row, column].join()), cells)),
    ),
  );
  const table = h(
    "table",
    { role: "grid", class: dense ? "heat dense" : "heat", "aria-label": `${name} graphs` },
    h("thead", {}, head),
    h("tbody", {}, ...body),
  );
  navigate(table, columns.length);
  return h("figure", {}, h("figcaption", {}, name), h("div", { class: "scroll" }, table));
}

function cellOf(graph, cells) {
  if (graph === undefined) return h("td", { class: "none" });
  const { key, phase, sequences, tokens, rows } = graph;
  const prompts = `${sequences} × ${tokens} tokens`;
  const shapes = {
    decode: `${sequences} rows`,
    prefill: prompts,
    mixed: `${prompts} + ${rows} rows`,
  };
  const cell = h("td", { tabindex: "-1", "data-shape": `${phase} ${shapes[phase]}` }, h("span"));
  cells.set(key, cell);
  return cell;
}

/** One cell can be tabbed to; arrow keys lead to the others. What is pointed at is told below. */
function navigate(table, columns) {
  const places = [...table.querySelectorAll("tbody td")];
  places.find((cell) => cell.hasAttribute("tabindex")).tabIndex = 0;
  const tell = ({ target }) => {
    const cell = target.closest("td[data-shape]");
    if (cell === null) return;
    const launches = Number(cell.dataset.launches).toLocaleString("en");
    setText(byId("graph-told"), `${cell.dataset.shape}: ${launches} launches`);
  };
  table.addEventListener("pointerover", tell);
  table.addEventListener("focusin", tell);
  table.addEventListener("keydown", (event) => {
    let place = places.indexOf(event.target);
    let next = moved(event.key, place, columns, places.length);
    if (place < 0 || next === null) return;
    event.preventDefault();
    while (places[next].className === "none" && next !== place) {
      [place, next] = [next, moved(event.key, next, columns, places.length)];
    }
    if (places[next].className === "none") return;
    event.target.tabIndex = -1;
    places[next].tabIndex = 0;
    places[next].focus();
  });
}
