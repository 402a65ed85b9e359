// Puts the panels together: what the feed says goes to each of them.

import { request } from "./api.js";
import { byId, setText } from "./dom.js";
import { follow } from "./feed.js";
import { graphGrid } from "./graphs.js";
import { History } from "./history.js";
import { latencyTable } from "./latencies.js";
import { loginForm } from "./login.js";
import { modelTable } from "./models.js";
import { Playground } from "./playground.js";
import { RingPanel } from "./ring.js";
import { AGENT, SCHEDULER, showTiles } from "./scheduler.js";
import { followTheme } from "./theme.js";

const CONNECTION = {
  connecting: () => "connecting…",
  live: () => "live",
  paused: () => "paused while out of sight",
  locked: () => "an API key is needed",
  lost: (seconds) => `not connected, trying again in ${seconds} s`,
};
const SAMPLE_MILLISECONDS = 1000;

const ring = new RingPanel();
const playground = new Playground();
const showScheduler = showTiles(byId("tiles"), SCHEDULER);
const showAgent = showTiles(byId("agent-tiles"), AGENT);
const showLatencies = latencyTable();
const showGraphs = graphGrid();
const histories = new Map();
let state = null;
let behind = 0; // seconds that this machine's clock is behind the server's
let watched = null;
let drawn = true;

const showModels = modelTable((name) => {
  watched = name;
  for (const element of document.querySelectorAll(".watched")) setText(element, name ?? "");
  if (state !== null) sample();
});

const now = () => Date.now() / 1000 + behind;

/** Shows or hides what a panel has, and says in its place that there is nothing. */
function present(id, content, known) {
  content.hidden = !known;
  byId(id).querySelector(":scope > .empty").hidden = known;
}

function draw() {
  drawn = true;
  if (state === null) return;
  setText(byId("server"), state.server);
  byId("server").dataset.state = state.server;
  showModels(state.models);
  playground.offer(state.models);
  showLatencies(state.latencies ?? {});
  const slots = state.rings[watched];
  present("ring", byId("ring-view"), slots !== undefined);
  if (slots !== undefined) ring.update(slots, now());
}

/** Once a second: what is too restless to be shown ten times as often. */
function sample() {
  for (const [name, stats] of Object.entries(state.schedulers)) {
    if (!histories.has(name)) histories.set(name, new History());
    histories.get(name).add(state.time, now(), stats);
  }
  const stats = state.schedulers[watched];
  present("scheduler", byId("tiles"), stats !== undefined);
  if (stats !== undefined) showScheduler(stats, histories.get(watched));
  byId("agent").hidden = !stats?.agent_turns;
  if (stats?.agent_turns) showAgent(stats, histories.get(watched));
  const graphs = state.graphs[watched] ?? {};
  present("graphs", byId("graph-view"), Object.keys(graphs).length > 0);
  showGraphs(graphs);
  ring.table(now());
}

let sampling = null;

function onConnection(status, seconds) {
  if (document.body.dataset.connection === status && status === "live") return;
  document.body.dataset.connection = status;
  setText(byId("connection"), CONNECTION[status](seconds));
  clearInterval(sampling);
  if (status === "live") {
    sampling = setInterval(() => state !== null && sample(), SAMPLE_MILLISECONDS);
    nameVersion();
  }
}

async function nameVersion() {
  if (byId("version").textContent !== "") return;
  const response = await request("version").catch(() => null);
  if (response?.ok) setText(byId("version"), (await response.json()).version);
}

followTheme(byId("theme"), () => ring.draw());
follow({
  onState: (news) => {
    const first = state === null;
    state = news;
    behind = state.time - Date.now() / 1000;
    if (first) {
      draw();
      sample();
    } else if (drawn) {
      drawn = false;
      requestAnimationFrame(draw);
    }
  },
  onConnection,
  askForKey: loginForm(),
});
