// Numbers of the scheduler and of the agent: a tile each, with what it was over the last minutes.

import { sparkline } from "./charts.js";
import { h, setText } from "./dom.js";
import { count, duration, percent, rate } from "./format.js";
import { SAMPLES } from "./history.js";

const perSecond = (label, name) => ({
  label,
  name,
  unit: "/s",
  now: (stats, sample) => (sample ? rate(sample[name]) : "–"),
  peak: rate,
});
const total = (label, name) => ({
  label,
  name,
  now: (stats) => count(stats[name]),
  peak: (value) => `${rate(value)}/s`,
});
const gauge = (label, name, now, peak) => ({ label, name, now, peak });

export const SCHEDULER = [
  perSecond("Tokens", "generated_tokens"),
  perSecond("Steps", "steps"),
  gauge("Rows used", "rows_used", (s) => `${count(s.rows_used)} / ${count(s.rows)}`, count),
  gauge("KV memory", "kv_usage", (s) => percent(s.kv_usage), percent),
  gauge("Waiting", "waiting", (s) => count(s.waiting), count),
  gauge("Mean gap", "gap", (s, sample) => (sample ? duration(sample.gap) : "–"), duration),
  perSecond("Prompt tokens", "prompt_tokens"),
  total("Decode launches", "decode_launches"),
  total("Prefill launches", "prefill_launches"),
  total("Mixed launches", "mixed_launches"),
  total("Tail launches", "tail_launches"),
  total("Launch retries", "launch_retries"),
  total("Preemptions", "preemptions"),
  total("Parks", "parks"),
  total("Completions", "completions"),
];

export const AGENT = [
  perSecond("Turns", "agent_turns"),
  perSecond("Reads", "agent_reads"),
  perSecond("Bytes read", "agent_read_bytes"),
  perSecond("Writes", "agent_writes"),
  perSecond("Bytes written", "agent_written_bytes"),
  total("Reconnections", "agent_reconnections"),
];

/** `update(stats, history)` shows them; numbers that are counts have the rate in their line. */
export function showTiles(list, kinds) {
  const tiles = kinds.map((tile) => {
    const value = h("span", { class: "value" });
    const peak = h("span", { class: "peak" });
    const spark = sparkline(SAMPLES);
    list.append(
      h(
        "div",
        { class: "tile" },
        h("dt", {}, tile.label),
        h("dd", {}, value, tile.unit ? h("span", { class: "unit" }, tile.unit) : ""),
        h("dd", { class: "trend" }, peak, spark.element),
      ),
    );
    return { ...tile, value, peakText: peak, spark };
  });
  return (stats, history) => {
    const sample = history.samples.at(-1);
    for (const tile of tiles) {
      const series = history.series(tile.name);
      setText(tile.value, tile.now(stats, sample));
      setText(tile.peakText, `peak ${tile.peak(Math.max(0, ...series))}`);
      tile.spark.update(series);
    }
  };
}
