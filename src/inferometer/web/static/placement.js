// What the data of a cluster says: ranks by domain of the fast link, traffic by link, and names for people.
import { bytes, percent, seconds } from "./format.js";

export const PARTS = [
  ["weights", "weights", "blue"],
  ["kv_cache", "KV cache", "orange"],
  ["activation", "activations", "sky"],
  ["overhead", "overhead", "grey"],
];

const NAMES = { nvlink: "NVLink", pcie: "PCIe", xgmi: "xGMI", c2c: "NVLink-C2C", ici: "ICI", hccs: "HCCS" };
export const linkName = (name) => NAMES[name] ?? name;

// span([8, 15]) "8–15" · span([3, 3]) "3"
export const span = (pair) => (!pair?.length ? "" : pair[0] === pair[1] ? `${pair[0]}` : `${pair[0]}–${pair[1]}`);

// The ranks of each domain: [{ index, ranks, first, last, stages }]
export function domainsOf(cluster) {
  const domains = [];
  for (const rank of cluster.ranks) {
    const domain = (domains[rank.domain] ??= { index: rank.domain, ranks: [], stages: [] });
    domain.ranks.push(rank);
    if (domain.stages.at(-1) !== rank.stage) domain.stages.push(rank.stage);
  }
  return domains.map((domain) => ({ ...domain, first: domain.ranks[0].rank, last: domain.ranks.at(-1).rank }));
}

// "node", or what joins more than one of them: "NVLink domain"
export const domainWord = (cluster) =>
  cluster.gpus_per_domain > cluster.gpus_per_board ? `${linkName(cluster.links[0].name)} domain` : "node";

// What ranks of a stage send over a link in a phase; the same operator of several blocks is one.
export function traffic(stage, link, phase) {
  const flows = new Map();
  for (const flow of stage?.flows[phase] ?? []) {
    if (!(flow.links[link] > 0)) continue;
    const key = `${flow.draft ? "draft: " : ""}${flow.name} ${flow.axis} ${flow.ranks}`;
    const sum = flows.get(key) ?? { ...flow, key, bytes: 0, sent: 0, seconds: 0, share: 0, count: 0 };
    sum.bytes += flow.links[link];
    for (const name of ["sent", "seconds", "share", "count"]) sum[name] += flow[name];
    flows.set(key, sum);
  }
  const list = [...flows.values()].sort((a, b) => b.seconds - a.seconds);
  const total = (name) => list.reduce((sum, flow) => sum + flow[name], 0);
  return { stage: stage?.stage, flows: list, bytes: total("bytes"), seconds: total("seconds"), share: total("share") };
}

// Of some stages, the one that a link is busy for longest.
export const busiest = (cluster, stages, link, phase) =>
  stages.map((number) => traffic(cluster.stages[number], link, phase)).sort((a, b) => b.share - a.share)[0];

export const opName = (flow) => `${flow.draft ? "draft: " : ""}${flow.name}`;

// "14.7% of the decode: all_reduce 1.35 ms, all_gather 44.4 µs", in so many letters; "idle" where nothing travels
export function inWords(load, phase, most = Infinity) {
  if (!load?.flows.length) return "idle";
  const flows = load.flows.slice(0, 3).map((flow) => `${opName(flow)} ${seconds(flow.seconds)}`);
  const whole = (count) => [`${percent(load.share)} of the ${phase}`, flows.slice(0, count).join(", ")];
  const texts = [3, 2, 1, 0].map((count) => whole(count).filter(Boolean).join(": "));
  return texts.find((text) => text.length <= most) ?? percent(load.share);
}

// Where a rank stands on each axis that the plan has: "stage 1 · dp 0 · tp 3"
export function position(cluster, rank, short = false) {
  const { pp, dp, tp, dcp } = cluster.parallel;
  return [
    pp > 1 && !short && `stage ${rank.stage}`,
    dp > 1 && `dp ${rank.dp}`,
    tp > 1 && `tp ${rank.tp}`,
    dcp > 1 && !short && `dcp ${rank.dcp}`,
  ]
    .filter(Boolean)
    .join(short ? " " : " · ");
}

// counted("head", [8, 15]) "heads 8–15"
const counted = (noun, pair) => `${noun}${pair[0] === pair[1] ? "" : "s"} ${span(pair)}`;

// What of the network a rank has: ["layers 0–39", "heads 8–15", "experts 0–15"]
export function shares(cluster, rank) {
  const stage = cluster.stages[rank.stage];
  const experts =
    stage.experts && (rank.experts ? counted("expert", rank.experts) : cluster.experts_sliced > 1 && slice(cluster));
  return [
    stage.layers.length && counted("layer", stage.layers),
    rank.heads && cluster.parallel.tp > 1 && counted("head", rank.heads),
    experts,
  ].filter(Boolean);
}

const slice = (cluster) => `1/${cluster.experts_sliced} of experts`;

// One line on a GPU, for hovering and for screen readers.
export function rankLine(cluster, rank, phase) {
  const m = cluster.stages[rank.stage].memory;
  const took = cluster.links
    .map((link) => [link.name, traffic(cluster.stages[rank.stage], link.name, phase)])
    .filter(([, load]) => load.flows.length)
    .map(([name, load]) => `sends ${bytes(load.bytes)} over ${linkName(name)}, ${percent(load.share)} of the ${phase}`);
  return [
    `GPU ${rank.rank}`,
    position(cluster, rank),
    `${bytes(m.total_bytes)} of ${bytes(m.usable_bytes)} usable`,
    `weights ${bytes(m.weights_bytes)}, KV cache ${bytes(m.kv_cache_bytes)}`,
    ...shares(cluster, rank),
    ...took,
  ].filter(Boolean);
}

// The GPUs that take part in a collective with this one: "GPUs 8–15"
export function partners(cluster, rank, flow) {
  if (flow.axis === "host") return "the host's memory";
  if (flow.axis === "pp") return `GPU ${rank.rank + cluster.parallel.tp * cluster.parallel.dp}`;
  const first = Math.floor(rank.rank / flow.ranks) * flow.ranks;
  return `GPUs ${first}–${first + flow.ranks - 1}`;
}
