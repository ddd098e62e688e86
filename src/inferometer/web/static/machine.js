// The machine as SVG: domains with their GPUs as tanks of memory, the links between them as bars, the network below.
import { s } from "./dom.js";
import { bytes, si } from "./format.js";
import { busiest, domainWord, inWords, linkName, PARTS, position, rankLine, shares, span } from "./placement.js";
import { palette, tint } from "./theme.js";

const LEVELS = {
  large: { w: 196, h: 148, gap: 14 },
  card: { w: 114, h: 102, gap: 8 },
  cell: { w: 42, h: 48, gap: 4 },
  mini: { w: 10, h: 18, gap: 2 },
};
const PAD = 10;
const TITLE = 24;
const GAP = 12;
const SPINE = 22;
const MOST_DOMAINS = 128; // that are drawn

// Detail by the number of GPUs to draw and the width there is.
function levelOf(count, wide, alone) {
  const narrow = wide < 560;
  if (count <= (narrow ? 2 : 4)) return "large";
  if (count <= (narrow ? 8 : 32)) return "card";
  return count <= (narrow ? (alone ? 80 : 32) : alone ? 320 : 160) ? "cell" : "mini";
}

// The space at its end keeps texts apart where they are read as one.
const text = (x, y, content, extra = {}) =>
  s("text", { x, y, "font-size": 11, fill: palette().muted, ...extra }, `${content} `);

// Letters that fit: each is a little more than half as wide as its size.
const letters = (wide, size = 11) => Math.floor(wide / (size * 0.56));

function fitted(content, most) {
  return content.length <= most ? content : `${content.slice(0, Math.max(1, most - 1))}…`;
}

const heat = (share) =>
  share > 0 ? tint(palette().green, 0.3 + 0.7 * Math.min(1, Math.sqrt(share / 0.5))) : palette().faint;

// What can be pointed at: hovering tells, a click pins it. Its name begins with what is seen of it.
function part(pick, lines, chosen, ...children) {
  const attributes = { class: "part", role: "button", tabindex: -1, "data-pick": pick };
  const group = s("g", { ...attributes, "aria-pressed": String(pick === chosen) }, ...children);
  const seen = [...group.querySelectorAll("text")].map((one) => one.textContent.trim()).join(" ");
  const more = lines.filter((line) => !seen.includes(line));
  const whole = lines.join(", ");
  group.setAttribute("aria-label", whole.includes(seen) ? whole : [seen, ...more].join(", "));
  return group;
}

function tank(memory, x, y, w, h) {
  const p = palette();
  const whole = Math.max(memory.capacity_bytes, memory.total_bytes);
  let top = y + h;
  const fills = PARTS.map(([key, , color]) => {
    const high = (memory[`${key}_bytes`] / whole) * h;
    top -= high;
    return high > 0.2 && s("rect", { x, y: top, width: w, height: high, fill: p[color] });
  });
  const over = memory.total_bytes > memory.usable_bytes;
  const limit = y + h - (memory.usable_bytes / whole) * h;
  return [
    s("rect", { x, y, width: w, height: h, fill: p.grid }),
    fills,
    s("path", { d: `M${x},${limit}h${w}`, stroke: over ? p.vermillion : p.ink, "stroke-dasharray": "2 2" }),
    s("rect", { x, y, width: w, height: h, fill: "none", stroke: over ? p.vermillion : p.muted }),
  ];
}

function gpu(cluster, rank, level, { x, y, w, h }, { chosen, phase, zooms }) {
  const p = palette();
  const stage = cluster.stages[rank.stage];
  const m = stage.memory;
  const pick = `gpu:${rank.rank}`;
  const label = rankLine(cluster, rank, phase);
  const frame = s("rect", { class: "frame", x, y, width: w, height: h, rx: 5, fill: p.paper, stroke: p.faint });
  if (level === "mini") {
    const inner = [s("rect", { class: "frame", x, y, width: w, height: h, fill: "none" }), tank(m, x, y, w, h)];
    return zooms ? s("g", { "data-tip": pick }, inner) : part(pick, label, chosen, inner);
  }
  if (level === "cell")
    return part(
      pick,
      label,
      chosen,
      frame,
      text(x + w / 2, y + 13, rank.rank, { "text-anchor": "middle", fill: p.ink }),
      tank(m, x + 6, y + 18, w - 12, h - 23),
    );
  const over = m.total_bytes > m.usable_bytes;
  const tall = h - 34;
  const large = level === "large";
  const thick = large ? 30 : 18;
  const at = x + thick + (large ? 15 : 12);
  const lines = large
    ? [...memoryLines(stage), ...shares(cluster, rank)].slice(0, 8)
    : shares(cluster, rank).slice(0, 3);
  return part(
    pick,
    label,
    chosen,
    frame,
    text(x + (large ? 8 : 6), y + 17, `GPU ${rank.rank}`, { "font-size": 12, "font-weight": 620, fill: p.ink }),
    text(x + w - 8, y + 17, position(cluster, rank, true), { "text-anchor": "end", "font-size": 10.5 }),
    tank(m, x + (large ? 8 : 6), y + 25, thick, tall),
    text(at, y + 35, bytes(m.total_bytes), { "font-size": 12, "font-weight": 620, fill: over ? p.vermillion : p.ink }),
    !large && text(at, y + 49, `of ${bytes(m.capacity_bytes)}`, { "font-size": 10.5 }),
    large && text(at + 58, y + 35, `of ${bytes(m.capacity_bytes)}`),
    lines.map((line, i) => {
      const color = large && (PARTS.find(([, word]) => line.startsWith(`${word} `))?.[2] ?? (i === 4 && "grid"));
      const down = y + (large ? 52 : 65) + i * 14;
      return [
        color && s("rect", { x: at, y: down - 8, width: 8, height: 8, rx: 2, fill: p[color] }),
        text(at + (color ? 13 : 0), down, fitted(line, letters(x + w - at - 2, 10)), { "font-size": 10.5 }),
      ];
    }),
  );
}

const memoryLines = ({ memory: m }) => [
  ...PARTS.map(([key, word]) => `${word} ${bytes(m[`${key}_bytes`])}`),
  m.total_bytes > m.usable_bytes
    ? `${bytes(m.total_bytes - m.usable_bytes)} over the usable memory`
    : `free ${bytes(m.usable_bytes - m.total_bytes)} of usable`,
];

// "NVLink 450 GB/s", "xGMI 64 of 448 GB/s: 1 of 7 links", "PCIe 32 GB/s through the host's memory"
function capacity(link) {
  const figure = /^\d/.test(link.note) ? link.note : `${si(link.bandwidth, "B/s")} ${link.note}`.trim();
  const more =
    link.joins.length > 1 && !link.note ? ", also to the host" : link.topology === "bridge" ? " in pairs" : "";
  return `${linkName(link.name)} ${figure}${more}`;
}

// A link of a domain: a bar, a stem to each GPU, and a line that says how busy it is: above the bar or below it.
function bus(cluster, link, domain, { x, y, w, stems, labelled, above = false, pairs = null }, { chosen, phase }) {
  const load = busiest(cluster, domain.stages, link.name, phase);
  const color = heat(load.share);
  const most = letters(w);
  const line = `${capacity(link)} · ${inWords(load, phase, most - capacity(link).length - 3)}`;
  const bar = above ? y + 15 : y;
  const fill = load.share > 0 ? palette().ink : palette().muted;
  return part(
    `link:${link.name}:${domain.index}`,
    [line, `${domainWord(cluster)} ${domain.index}`],
    chosen,
    s("rect", {
      class: "frame hit",
      x: x - 3,
      y: y - 4,
      width: w + 6,
      height: labelled ? 29 : 13,
      rx: 5,
      fill: "none",
    }),
    stems.map(([at, from]) =>
      s("path", { d: `M${at},${from}V${bar + 3}`, stroke: color, "stroke-width": 1.5 + 5 * Math.min(1, load.share) }),
    ),
    (pairs ?? [{ x, w }]).map((one) =>
      s("rect", { x: one.x, y: bar, width: one.w, height: labelled ? 7 : 5, rx: 3, fill: color }),
    ),
    labelled && text(x + 1, above ? y + 8 : y + 19, fitted(line, most), { fill }),
  );
}

// A bridge joins two cards that stand side by side.
const pairsOf = (spots) =>
  spots
    .filter((_, i) => i % 2 === 0 && spots[i + 1]?.y === spots[0].y)
    .map((spot, i) => ({ x: spot.x, w: spots[2 * i + 1].x + spot.w - spot.x }));

// How the GPUs of a domain stand in rows, and how large its box is.
function boxOf(cluster, count, level, { wide, alone }) {
  const { w: least, h, gap } = LEVELS[level];
  const most = Math.max(1, Math.floor((wide - 2 * PAD + gap) / (least + gap)));
  const even = Array.from({ length: most }, (_, i) => most - i).find((n) => count % n === 0);
  const columns = count <= most ? count : even > most / 2 ? even : most;
  const room = level === "large" ? Math.min(wide, 330) : level === "card" || (level === "cell" && alone) ? wide : 0;
  const w = Math.min(Math.max(least, (room - 2 * PAD - (columns - 1) * gap) / columns), least * 1.6);
  const rows = Math.ceil(count / columns);
  const used = (link) =>
    cluster.stages.some((stage) =>
      Object.values(stage.flows)
        .flat()
        .some((f) => link.name in f.links),
    );
  const between = cluster.links.filter((link) => link.joins.includes("gpus")).sort((a, b) => used(b) - used(a));
  const host = cluster.links.find((link) => link.joins.includes("host") && !link.joins.includes("gpus"));
  const labelled = level !== "mini";
  const bar = labelled ? 40 : 9;
  const narrowest = level === "mini" ? 114 : Math.min(wide, 330);
  const high = TITLE + (labelled && host ? 40 : 0) + rows * (h + gap) + between.length * bar + (labelled ? 4 : 8);
  const box = Math.max(columns * (w + gap) - gap + 2 * PAD, narrowest);
  return { w, h, gap, columns, rows, between, host: labelled && host, labelled, bar, wide: box, high };
}

const gpus = ({ first, last }) => `GPU${first === last ? "" : "s"} ${span([first, last])}`;

function heading(cluster, domain, level) {
  const stages = domain.stages.length > 1 ? `stages ${span([domain.stages[0], domain.stages.at(-1)])}` : "";
  const one = cluster.stages.length > 1 && !stages && `stage ${domain.stages[0]}`;
  const word = domainWord(cluster);
  const name = `${word[0].toUpperCase()}${word.slice(1)} ${domain.index}`;
  if (level === "mini") return [name, one || stages].filter(Boolean).join(" · ");
  return [name, gpus(domain), one || stages].filter(Boolean).join(" · ");
}

function node(cluster, domain, level, box, { x, y }, look) {
  const p = palette();
  const left = x + PAD;
  const wide = box.wide - 2 * PAD;
  let top = y + TITLE;
  const parts = [];
  const spots = domain.ranks.map((_, i) => ({
    x: left + (i % box.columns) * (box.w + box.gap),
    y: top + (box.host ? 40 : 0) + Math.floor(i / box.columns) * (box.h + box.gap),
    w: box.w,
    h: box.h,
  }));
  const stems = (shift, down) =>
    level === "cell" || level === "mini"
      ? []
      : spots.map((spot) => [spot.x + spot.w / 2 + shift, down ? spot.y + spot.h : spot.y]);
  const far = Math.max(...spots.map((spot) => spot.x + spot.w)) - left;
  const bars = { x: left, w: level === "mini" ? wide : Math.max(far, Math.min(wide, 300)), labelled: box.labelled };
  if (box.host) {
    parts.push(bus(cluster, box.host, domain, { ...bars, y: top + 3, stems: stems(-8, false), above: true }, look));
    top += 40;
  }
  top += box.rows * (box.h + box.gap);
  box.between.forEach((link, i) => {
    const y = top + (box.labelled ? 6 : 0) + i * box.bar;
    const pairs = link.topology === "bridge" ? pairsOf(spots) : null;
    parts.push(bus(cluster, link, domain, { ...bars, y, stems: i ? [] : stems(8, true), pairs }, look));
  });
  const zooms = look.zooms ? { "data-zoom": domain.index, role: "button", tabindex: -1, class: "part" } : {};
  const name = heading(cluster, domain, level);
  const ranks = domain.ranks.map((rank, i) => gpu(cluster, rank, level, spots[i], look));
  const size = level === "mini" ? 10 : 11.5;
  const inside = level === "mini" && look.zooms; // too small to be pointed at one by one
  return s(
    "g",
    {},
    s(
      "g",
      { ...zooms, "aria-label": look.zooms ? `${name}: look closer` : null },
      s("rect", { class: "frame", x, y, width: box.wide, height: box.high, rx: 8, fill: p.panel, stroke: p.faint }),
      text(x + PAD, y + 16, fitted(name, letters(box.wide - 2 * PAD, size)), {
        "font-weight": 620,
        "font-size": size,
        fill: p.ink,
      }),
      inside && ranks,
    ),
    parts,
    !inside && ranks,
  );
}

// The network: a rail under each row of domains, joined by a spine; or one idle line where there is a single domain.
function network(cluster, rails, { wide, y }, { chosen, phase }) {
  const link = cluster.links.find((one) => one.name === "network");
  if (!link) return null;
  const p = palette();
  const all = cluster.stages.map((stage) => stage.stage);
  const load = busiest(cluster, all, "network", phase);
  const name = `network ${si(link.bandwidth, "B/s")} per GPU`;
  const most = letters(wide - 12);
  const line = `${name} · ${inWords(load, phase, most - name.length - 3)}`;
  const color = heat(load.share);
  const thick = 2.5 + 5 * Math.min(1, load.share);
  const lines = rails.flatMap(({ level, ports }) => [
    s("path", { d: `M7,${level}H${Math.max(...ports.map(([x]) => x))}`, stroke: color, "stroke-width": thick }),
    ports.map(([x, from]) => s("path", { d: `M${x},${from}V${level}`, stroke: color, "stroke-width": thick })),
  ]);
  const spine = rails.length > 0 && s("path", { d: `M7,${rails[0].level}V${y}`, stroke: color, "stroke-width": thick });
  return part(
    "link:network:0",
    [line],
    chosen,
    lines,
    spine,
    s("rect", { class: "frame hit", x: 1, y: y - 5, width: wide - 2, height: 28, rx: 5, fill: "none" }),
    s("rect", { x: 4, y, width: wide - 8, height: 7, rx: 3, fill: color }),
    text(6, y + 19, fitted(line, most), { fill: load.share > 0 ? p.ink : p.muted }),
  );
}

// machine(cluster, domains, { wide, phase, chosen, zooms }) -> { svg, level, drawn }: so many domains are drawn at most
export function machine(cluster, domains, look) {
  const drawn = domains.slice(0, MOST_DOMAINS);
  const count = drawn.reduce((sum, domain) => sum + domain.ranks.length, 0);
  const level = levelOf(count, look.wide, drawn.length === 1);
  const margin = domains.length > 1 ? SPINE : 0;
  const most = Math.max(...drawn.map((domain) => domain.ranks.length));
  const box = boxOf(cluster, most, level, { wide: look.wide - margin, alone: drawn.length === 1 || look.wide < 560 });
  const perRow = Math.max(1, Math.floor((look.wide - margin + GAP) / (box.wide + GAP)));
  const boxes = [];
  const rails = [];
  let y = 2;
  for (let i = 0; i < drawn.length; i += perRow) {
    const row = drawn.slice(i, i + perRow).map((domain, k) => [domain, margin + k * (box.wide + GAP)]);
    row.forEach(([domain, x]) => boxes.push(node(cluster, domain, level, box, { x, y }, look)));
    const bottom = y + box.high;
    if (margin) rails.push({ level: bottom + 10, ports: row.map(([, x]) => [x + box.wide / 2, bottom]) });
    y = bottom + (margin ? 22 : 10);
  }
  const columns = Math.min(perRow, drawn.length);
  const wide = Math.max(margin + columns * (box.wide + GAP) - GAP, Math.min(look.wide, 330));
  const svg = s(
    "svg",
    { width: wide + 2, height: y + 34, viewBox: `-1 0 ${wide + 2} ${y + 34}`, class: "machine" },
    boxes,
    network(cluster, rails, { wide, y: y + 8 }, look),
  );
  return { svg, level, drawn: drawn.length };
}
