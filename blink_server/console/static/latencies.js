// Percentiles, and of how long.

import { rangePlot } from "./charts.js";
import { byId, h } from "./dom.js";
import { duration } from "./format.js";

const NAMES = {
  ttft: "To first token",
  tpot: "Per output token",
  e2e: "End to end",
};
const LOW = 1e-4;

const span = (minutes) => {
  if (minutes === 0) return "since the start";
  return minutes === 1 ? "last minute" : `last ${minutes} minutes`;
};

/** `update(latencies)`: {name: {quantiles: [p50, p95, p99] in seconds or null, minutes}}. */
export function latencyTable() {
  const rows = byId("latency-rows");
  let shown = "";
  return (latencies) => {
    const text = JSON.stringify(latencies);
    if (text === shown) return;
    shown = text;
    const known = Object.values(latencies).flatMap((told) => told.quantiles).filter(Boolean);
    const high = 10 ** Math.ceil(Math.log10(Math.max(1, ...known)));
    rows.replaceChildren(
      ...Object.entries(NAMES).map(([name, label]) => {
        const told = latencies[name] ?? { quantiles: [null, null, null], minutes: 0 };
        const values = told.quantiles;
        const plot = values.includes(null)
          ? h("span", { class: "muted" }, "none yet")
          : rangePlot(values.map((value) => Math.max(value, LOW)), LOW, high);
        return h(
          "tr",
          {},
          h(
            "th",
            { scope: "row" },
            label,
            h("span", { class: "over" }, values.includes(null) ? "" : span(told.minutes)),
          ),
          ...values.map((value) =>
            h("td", { class: "number" }, value === null ? "–" : duration(value)),
          ),
          h("td", { class: "plot" }, plot),
        );
      }),
    );
  };
}
