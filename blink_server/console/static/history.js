// What the schedulers said in the last minutes, a sample a second.

export const SAMPLES = 180;
const IDLE = 2.5; // seconds without news after which nothing happens; before, news are awaited
const LONGEST_STEP = 5; // seconds between samples beyond which there was no connection

/** The samples of one version: gauges as they were, counters as their growth a second. */
export class History {
  constructor() {
    this.samples = [];
    this.last = null;
    this.news = null;
  }

  /**
   * `time`: of the feed's last news, `now`: the server's clock, both in seconds since 1970;
   * `stats`: the feed's numbers of a scheduler.
   */
  add(time, now, stats) {
    const before = this.last;
    const idle = time === this.news;
    if (idle && now - before.time < IDLE) {
      if (this.samples.length > 0) this.push(this.samples.at(-1));
      return;
    }
    this.news = time;
    this.last = { time: idle ? now : time, ...stats };
    if (before === null) return;
    const seconds = this.last.time - before.time;
    const anew = stats.steps < before.steps || stats.agent_turns < before.agent_turns;
    if (seconds <= 0 || anew || seconds > LONGEST_STEP) {
      this.push(null);
      return;
    }
    const sample = { ...stats };
    for (const name of COUNTERS) sample[name] = (stats[name] - before[name]) / seconds;
    const gaps = stats.gaps - before.gaps;
    sample.gap = gaps > 0 ? (stats.gap_seconds - before.gap_seconds) / gaps : 0;
    this.push(sample);
  }

  push(sample) {
    this.samples.push(sample);
    if (this.samples.length > SAMPLES) this.samples.shift();
  }

  /** One number over time; null where there was no connection. */
  series(name) {
    return this.samples.map((sample) => (sample === null ? null : sample[name]));
  }
}

const COUNTERS = [
  ...["steps", "generated_tokens", "prompt_tokens", "completions", "preemptions", "parks"],
  ...["decode_launches", "prefill_launches", "mixed_launches", "tail_launches", "launch_retries"],
  ...["agent_turns", "agent_reads", "agent_read_bytes", "agent_writes", "agent_written_bytes"],
  "agent_reconnections",
];
