// Percentiles of the last minutes.

import { rangePlot } from "./charts.js";
import { byId, h } from "./dom.js";
import { duration } from "./format.js";

const NAMES = {
  ttft: "To first token",
  tpot: "Per output token",
  e2e: "End to end",
};
const LOW = 1e-4;

/** `update(latencies)`: {name: [p50, p95, p99] in seconds or null}. */
export function latencyTable() {
  const rows = byId("latency-rows");
  let shown = "";
  return (latencies) => {
    const text = JSON.stringify(latencies);
    if (text === shown) return;
    shown = text;
    const known = Object.values(latencies).flat().filter(Boolean);
    const high = 10 ** Math.ceil(Math.log10(Math.max(1, ...known)));
    rows.replaceChildren(
      ...Object.entries(NAMES).map(([name, label]) => {
        const values = latencies[name] ?? [null, null, null];
        const plot = values.includes(null)
          ? h("span", { class: "muted" }, "none yet")
          : rangePlot(values.map((value) => Math.max(value, LOW)), LOW, high);
        return h(
          "tr",
          {},
          h("th", { scope: "row" }, label),
          ...values.map((value) =>
            h("td", { class: "number" }, value === null ? "–" : duration(value)),
          ),
          h("td", { class: "plot" }, plot),
        );
      }),
    );
  };
}
