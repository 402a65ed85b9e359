// Numbers as the console writes them.

const whole = new Intl.NumberFormat("en");

/** 950, 9,500, 95.0k, 9.50M. */
export function count(value) {
  if (value < 10000) return whole.format(Math.round(value));
  for (const [unit, size] of [["k", 1e3], ["M", 1e6], ["G", 1e9]]) {
    if (value < size * 1000 || unit === "G") return `${(value / size).toPrecision(3)}${unit}`;
  }
}

/** A rate or a small number: 0, 0.25, 9.5, 95, 9,500. */
export function rate(value) {
  if (value === 0 || value >= 100) return count(value);
  return value < 1 ? value.toFixed(2) : value.toPrecision(2);
}

/** 850 µs, 12.3 ms, 1.23 s, 2 min 5 s. */
export function duration(seconds) {
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${Math.round(seconds * 1e6)} µs`;
}

export const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
