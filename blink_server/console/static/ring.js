// The ring: a cell a slot, coloured by state, on a canvas.

import { byId, h, moved, setText } from "./dom.js";
import { count, duration } from "./format.js";

export const STATES = [
  "empty",
  "waiting for prefill",
  "prefill",
  "decode",
  "paused",
  "completed",
];
const MOST_ROWS = 200;
const [SMALLEST, LARGEST] = [5, 20]; // pixels of a cell
const FEWEST_ROWS = 8;
const [STATE, TICKET, TOKENS, SINCE] = [0, 1, 2, 3];
const NONE = { slots: 0, per_range: 1, cells: {} };

/** The panel; `update(ring, time)` with the feed's ring and the server's clock in seconds. */
export class RingPanel {
  constructor() {
    this.canvas = byId("cells");
    this.ring = NONE;
    this.time = 0;
    this.at = null; // the slot that is told
    this.hidden = new Set(); // states that are filtered away
    this.legend = STATES.map((name, state) => this.#legendButton(name, state));
    byId("legend").append(...this.legend.map(({ button }) => button));
    new ResizeObserver(() => this.#layout()).observe(byId("ring-box"));
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#go(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("focus", () => this.#go(this.at ?? 0, true));
    this.canvas.addEventListener("blur", () => this.#go(null));
    byId("slots").addEventListener("toggle", () => this.table());
  }

  update(ring, time) {
    const resized = ring.slots !== this.ring.slots;
    [this.ring, this.time] = [ring, time];
    const counts = new Array(STATES.length).fill(0);
    for (const cell of Object.values(ring.cells)) counts[cell[STATE]] += 1;
    counts[0] = ring.slots - Object.keys(ring.cells).length;
    this.legend.forEach(({ number }, state) => setText(number, counts[state].toLocaleString("en")));
    if (resized) this.#layout();
    else this.draw();
  }

  /** Draws everything; the colours are those of the legend, so that they are in one place. */
  draw() {
    const { columns, size, scale } = this.shape ?? {};
    const slots = this.ring.slots;
    if (!columns || !slots) return;
    const context = this.canvas.getContext("2d");
    const colour = this.legend.map(({ swatch }) => getComputedStyle(swatch).backgroundColor);
    const other = getComputedStyle(this.canvas).getPropertyValue("outline-color");
    const gap = size > 5 ? 1 : 0.5;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (let slot = 0; slot < slots; slot++) {
      const state = this.ring.cells[slot]?.[STATE] ?? 0;
      const shown = !this.hidden.has(state);
      // Ranges, each of one frontend, differ a little where they are empty.
      const odd = Math.floor(slot / this.ring.per_range) % 2 === 1;
      context.globalAlpha = shown ? (state === 0 && odd ? 0.55 : 1) : 0.25;
      context.fillStyle = shown ? colour[state] : colour[0];
      context.fillRect((slot % columns) * size, Math.floor(slot / columns) * size, size - gap, size - gap);
    }
    context.globalAlpha = 1;
    if (this.at !== null && this.at < slots) {
      context.strokeStyle = other;
      context.lineWidth = 2;
      const [x, y] = [(this.at % columns) * size, Math.floor(this.at / columns) * size];
      context.strokeRect(x - 0.5, y - 0.5, size, size);
    }
    this.#tell();
  }

  #tell() {
    setText(byId("cell-told"), this.at === null ? this.#hint() : this.#told(this.at));
  }

  /** Once a second: the ages, the text that stands for the picture, and the table if it is open. */
  table(time = this.time) {
    this.time = time;
    this.#tell();
    const used = Object.entries(this.ring.cells).filter(([, cell]) => !this.hidden.has(cell[STATE]));
    setText(
      byId("ring-summary"),
      `${this.ring.slots} slots, ${Object.keys(this.ring.cells).length} in use.`,
    );
    if (!byId("slots").open) return;
    byId("slot-rows").replaceChildren(
      ...used.slice(0, MOST_ROWS).map(([slot, cell]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", class: "number" }, slot),
          h("td", {}, STATES[cell[STATE]]),
          ...[cell[TICKET], this.#age(cell), cell[TOKENS], this.#range(slot)].map((text) =>
            h("td", { class: "number" }, String(text)),
          ),
        ),
      ),
    );
    const left = used.length - MOST_ROWS;
    setText(byId("slots-left"), left > 0 ? `${count(left)} more are not listed.` : "");
  }

  #legendButton(name, state) {
    const swatch = h("span", { class: "swatch", "data-slot": state });
    const number = h("span", { class: "number" }, "0");
    const button = h(
      "button",
      { type: "button", "aria-pressed": "true", onclick: () => toggle() },
      swatch,
      `${name} `,
      number,
    );
    const toggle = () => {
      const hide = !this.hidden.has(state);
      if (hide) this.hidden.add(state);
      else this.hidden.delete(state);
      button.setAttribute("aria-pressed", String(!hide));
      this.draw();
      this.table();
    };
    return { button, swatch, number };
  }

  /** Columns are a power of two, so that ranges begin where rows do, and as many as can be seen. */
  #layout() {
    const width = byId("ring-box").clientWidth;
    const slots = this.ring.slots;
    if (!width || !slots) return;
    let columns = 16;
    while (width / (2 * columns) >= SMALLEST && slots / (2 * columns) >= FEWEST_ROWS) columns *= 2;
    const size = Math.min(LARGEST, width / columns);
    const scale = devicePixelRatio;
    const height = Math.ceil(slots / columns) * size;
    this.shape = { columns, size, scale };
    this.canvas.width = Math.round(columns * size * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${columns * size}px`;
    this.canvas.style.height = `${height}px`;
    this.draw();
  }

  #point(event) {
    if (!this.shape) return;
    const { columns, size } = this.shape;
    const [column, row] = [Math.floor(event.offsetX / size), Math.floor(event.offsetY / size)];
    const slot = row * columns + column;
    this.#go(column >= 0 && column < columns && slot < this.ring.slots ? slot : null);
  }

  #key(event) {
    if (!this.shape) return;
    const next = moved(event.key, this.at ?? 0, this.shape.columns, this.ring.slots);
    if (next === null) return;
    event.preventDefault();
    this.#go(next, true);
  }

  #go(slot, aloud = false) {
    this.at = slot;
    this.draw();
    if (aloud && this.ring.slots) setText(byId("cell-said"), this.#told(slot));
  }

  #hint() {
    const used = Object.keys(this.ring.cells).length;
    return `${count(used)} of ${count(this.ring.slots)} slots in use. Point at one, or use the arrow keys.`;
  }

  #told(slot) {
    const cell = this.ring.cells[slot];
    const range = `range ${this.#range(slot)}`;
    if (cell === undefined) return `slot ${slot}: empty · ${range}`;
    const tokens = `${count(cell[TOKENS])} tokens`;
    const state = STATES[cell[STATE]];
    return `slot ${slot}: ${state} · ticket ${cell[TICKET]} · ${this.#age(cell)} old · ${tokens} · ${range}`;
  }

  #age(cell) {
    const seconds = Math.max(0, this.time - cell[SINCE]);
    return seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds);
  }

  #range(slot) {
    const size = this.ring.per_range;
    const number = Math.floor(slot / size);
    return `${number} (${number * size}–${Math.min((number + 1) * size, this.ring.slots) - 1})`;
  }
}
