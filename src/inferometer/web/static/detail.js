// The side panel of the cluster: one GPU or one link, in figures; beside them those of the pinned plan.
import { h, show } from "./dom.js";
import { bytes, change, digits, percent, seconds, si, spaced } from "./format.js";
import { domainWord, linkName, opName, PARTS, partners, position, span, traffic } from "./placement.js";
import { palette } from "./theme.js";

const TOPOLOGIES = {
  switch: "a switch: any two GPUs get the full bandwidth",
  mesh: "a mesh: each pair shares one link",
  torus: "a torus: neighbours are linked, others relay messages",
  bridge: "a bridge between two cards",
  host: "through host memory: the cards cannot access each other",
};

const pair = (word, value) => value && h("div", {}, h("dt", {}, word), h("dd", {}, value));

function table(caption, heads, rows) {
  const cells = (row) => row.map((cell, i) => (i ? h("td", {}, cell) : h("th", { scope: "row" }, cell)));
  return h(
    "table",
    { class: "detail" },
    h("caption", {}, caption),
    heads && h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, ...rows.map(({ cells: row, inner }) => h("tr", { class: inner ? "inner" : null }, ...cells(row)))),
  );
}

const then = (now, before, text) => (before === undefined ? "" : `${text(before)} ${change(now, before)}`.trim());

function memoryRows(stage, before) {
  const m = stage.memory;
  const old = before?.memory;
  const p = palette();
  const row = (word, key, color, extra = "") => ({
    cells: [
      h("span", {}, color && h("i", { class: "swatch", style: `background:${p[color]}` }), word, extra),
      bytes(m[key]),
      ...(before ? [then(m[key], old[key], bytes)] : []),
    ],
  });
  const parts = Object.entries(stage.weights)
    .filter(([, amount]) => amount > m.weights_bytes * 0.001)
    .map(([name, amount]) => ({
      inner: true,
      cells: [name, bytes(amount), ...(before ? [then(amount, before.weights[name], bytes)] : [])],
    }));
  const [weights, ...others] = PARTS.map(([key, word, color]) => row(word, `${key}_bytes`, color));
  const free = (memory) => Math.max(0, memory.usable_bytes - memory.total_bytes);
  return [
    weights,
    ...(parts.length > 1 ? parts : []),
    ...others,
    { cells: ["free", bytes(free(m)), ...(before ? [then(free(m), free(old), bytes)] : [])] },
    row("usable", "usable_bytes"),
    row("capacity", "capacity_bytes"),
  ];
}

function flowRows(flows, before, more) {
  return flows.map((flow) => {
    const old = before?.find((one) => one.key === flow.key);
    return {
      cells: [
        h("span", {}, opName(flow), more && h("small", {}, more(flow))),
        bytes(flow.bytes),
        h(
          "span",
          {},
          seconds(flow.seconds),
          old && h("small", {}, `pinned ${then(flow.seconds, old.seconds, seconds)}`),
        ),
        percent(flow.share),
      ],
    };
  });
}

const calls = (count) => `${digits(count)} call${count === 1 ? "" : "s"}`;
const heads = ["operator", "bytes", "time", "share"];

function gpuDetail(cluster, before, rank, phase) {
  const stage = cluster.stages[rank.stage];
  const old = before?.stages[Math.min(rank.stage, (before?.stages.length ?? 1) - 1)];
  const sends = cluster.links
    .map((link) => [link, traffic(stage, link.name, phase), old && traffic(old, link.name, phase).flows])
    .filter(([, load]) => load.flows.length);
  const blocks = stage.kv_blocks !== null && `${digits(Math.ceil(stage.kv_blocks_used))} of ${digits(stage.kv_blocks)}`;
  return {
    title: `GPU ${rank.rank}`,
    note: [`node ${rank.node}`, position(cluster, rank)].filter(Boolean).join(" · "),
    body: [
      h(
        "dl",
        { class: "pairs" },
        pair("layers", span(stage.layers)),
        pair("attention heads", span(rank.heads)),
        pair("KV heads", span(rank.kv_heads)),
        pair("experts", stage.experts && (span(rank.experts) || `1/${cluster.experts_sliced} of ${stage.experts}`)),
        pair("sequences", digits(stage.sequences)),
        pair("KV blocks", blocks),
        stage.offloaded_bytes > 0 && pair("weights on the host", bytes(stage.offloaded_bytes)),
      ),
      table("Memory", old && ["", "bytes", "pinned"], memoryRows(stage, old)),
      sends.map(([link, load, flows]) =>
        table(
          `Sends over ${linkName(link.name)} during ${phase}: ${percent(load.share)} of its time`,
          heads,
          flowRows(load.flows, flows, (flow) => ` with ${partners(cluster, rank, flow)}`),
        ),
      ),
      !sends.length && h("p", { class: "note" }, `It sends nothing during ${phase}.`),
    ],
  };
}

function linkDetail(cluster, before, name, domain, phase) {
  const link = cluster.links.find((one) => one.name === name);
  const ranks = name === "network" ? cluster.ranks : domain.ranks;
  const stages = [...new Set(ranks.map((rank) => rank.stage))];
  const loads = stages.map((number) => traffic(cluster.stages[number], name, phase));
  const busy = loads.filter((load) => load.flows.length);
  const sum = ranks.reduce((total, rank) => total + (loads[stages.indexOf(rank.stage)]?.bytes ?? 0), 0);
  const longest = [...busy].sort((a, b) => b.seconds - a.seconds)[0];
  const old = (number) =>
    before && traffic(before.stages[Math.min(number, before.stages.length - 1)], name, phase).flows;
  const joins = { gpus: "GPU to GPU", host: "to the host", network: "to other nodes" };
  return {
    title: name === "network" ? "network" : `${linkName(name)} · ${domainWord(cluster)} ${domain.index}`,
    note: [link.joins.map((one) => joins[one]).join(" and "), TOPOLOGIES[link.topology]].filter(Boolean).join(" · "),
    body: [
      h(
        "dl",
        { class: "pairs" },
        pair("a GPU, one way", si(link.bandwidth, "B/s")),
        pair("latency", seconds(link.latency)),
        pair("share of the time", percent(longest?.share ?? 0)),
        pair("sent by all GPUs", bytes(sum)),
      ),
      link.note && h("p", { class: "note" }, link.note),
      busy.map((load) =>
        table(
          cluster.stages.length > 1 ? `A GPU of stage ${load.stage}, ${phase}` : `A GPU during ${phase}`,
          heads,
          flowRows(
            load.flows,
            old(load.stage),
            (flow) =>
              ` ${spaced(flow.kind)} · ${flow.axis} ${flow.ranks} · ${calls(flow.count)} · ` +
              `${si(flow.sent / flow.seconds, "B/s")} of ${si(flow.peak_bandwidth, "B/s")}`,
          ),
        ),
      ),
      !busy.length && h("p", { class: "note" }, `Nothing is sent here during ${phase}.`),
    ],
  };
}

// detailOf(cluster, "gpu:3" or "link:nvlink:0", …) -> { title, note, body }; null where there is no such part
export function detailOf(cluster, before, pick, domains, phase) {
  const [kind, name, number] = (pick ?? "").split(":");
  if (kind === "gpu") {
    const rank = cluster.ranks[Number(name)];
    return rank ? gpuDetail(cluster, before, rank, phase) : null;
  }
  const known = kind === "link" && cluster.links.some((link) => link.name === name) && domains[Number(number)];
  return known ? linkDetail(cluster, before, name, known, phase) : null;
}

export function showDetail(host, detail, close) {
  show(
    host,
    h(
      "header",
      {},
      h("h3", {}, detail.title),
      h("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "✕"),
    ),
    h("p", { class: "note" }, detail.note),
    detail.body,
  );
}
