// One operator of the drawing as a box, or several small ones as a pill.
// Colour: what limits it, strength: its share of the time; beside a pinned plan: faster or slower, and by how much.
import { readable } from "./contrast.js";
import { s } from "./dom.js";
import { change, percent, seconds, spaced } from "./format.js";
import { boundColor, palette, tint } from "./theme.js";

export const FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const PEN = document.createElement("canvas").getContext("2d");

export function textWidth(content, size = 12, weight = 400) {
  PEN.font = `${weight} ${size}px ${FONT}`;
  return PEN.measureText(content).width;
}

export const text = (x, y, content, extra = {}) =>
  s("text", { x, y, "font-size": 12, fill: palette().ink, ...extra }, content);

// How strong a colour is for a share of the time: strength(0.01) 0.1, strength(1) 0.5
export const strength = (share) => 0.06 + 0.44 * Math.sqrt(Math.min(1, Math.max(0, share)));

const detail = ({ row, shapes }) => {
  const word = ["weight", "keys", "state"].find((w) => shapes?.[w]);
  return word ? `${word} ${shapes[word]}` : spaced(row.kind);
};

// What became of it since the pinned plan: { text, color } or nothing.
function moved(node) {
  const p = palette();
  if (node.before === undefined) return null;
  if (!node.before) return { text: "new", color: p.alert };
  const text = change(node.seconds, node.before);
  return { text, color: text === "±0%" ? p.muted : node.seconds < node.before ? p.accent : p.alert };
}

// The lines of a node as texts, for its width and for its name to screen readers.
export function lines(node) {
  const delta = moved(node)?.text ?? "";
  const name = node.members ? `${node.members.length} small operators` : node.row.name;
  if (node.small) return { name, share: percent(node.share), detail: "", time: "", delta };
  return { name, share: percent(node.share), detail: detail(node), time: seconds(node.seconds), delta };
}

export function widthOf(node) {
  const l = lines(node);
  const gap = l.delta ? 8 + textWidth(l.delta, 10, 600) : 0;
  if (node.small) return 46 + textWidth(l.name, 11.5, node.members ? 400 : 600) + textWidth(l.share, 11, 600) + gap;
  const first = 44 + textWidth(l.name, 12.5, 600) + textWidth(l.share, 12, 600);
  return Math.max(first, 40 + textWidth(l.detail, 10) + textWidth(l.time, 10) + gap);
}

function colors(node, chosen) {
  const p = palette();
  const delta = moved(node);
  const color = delta ? delta.color : boundColor(node.bound);
  const share = delta ? Math.abs(node.seconds - (node.before ?? 0)) / node.total : node.share;
  const fill = tint(color, strength(share));
  const edge = chosen ? p.ink : tint(color, 0.65);
  const on = (...wanted) => readable(fill, ...wanted, p.ink);
  return { p, color, fill, edge, on, delta };
}

function labels(node, x, y, wide, look) {
  const { p, color, on, delta } = look;
  const l = lines(node);
  const end = { "text-anchor": "end" };
  const tail = delta && [" ", s("tspan", { "font-size": 10, "font-weight": 600, fill: on(delta.color) }, delta.text)];
  if (node.small) {
    const level = y + node.tall / 2 + 4;
    const bold = node.members ? 400 : 600;
    return [
      text(x + 12, level, l.name, { "font-size": 11.5, "font-weight": bold, fill: on(p.ink) }),
      " ",
      text(x + wide - 10, level, [l.share, tail], { "font-size": 11, "font-weight": 600, fill: on(color), ...end }),
    ];
  }
  const middle = y + node.tall / 2;
  const small = { "font-size": 10, fill: on(p.muted) };
  return [
    text(x + 13, middle - 3, l.name, { "font-weight": 600, "font-size": 12.5, fill: on(p.ink) }),
    " ",
    text(x + wide - 10, middle - 3, l.share, { "font-weight": 600, fill: on(color), ...end }),
    " ",
    text(x + 13, middle + 12, l.detail, small),
    " ",
    text(x + wide - 10, middle + 12, [l.time, tail], { ...small, ...end }),
  ];
}

// node: { row | members, shapes, share, seconds, before, total, bound, small, tall, key, kind of phase };
// before: seconds of the pinned plan, 0 where it has no such operator, undefined where nothing is pinned.
export function box(node, place, { chosen, pick }) {
  const look = colors(node, chosen);
  const [x, y, wide] = [place.x - place.w / 2, place.y, place.w];
  const l = lines(node);
  const visible = [l.name, l.share, l.detail, l.time, l.delta].filter(Boolean).join(" ");
  const more = node.members
    ? `of the time, folded: ${node.members.map((m) => m.name).join(", ")}`
    : `${node.bound}-bound${node.before === undefined ? "" : ", against the pinned plan"}`;
  const act = (event) => {
    if (event.type === "click" || event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pick(event.type !== "click" || event.detail === 0);
    }
  };
  const round = node.members ? place.h / 2 : 6;
  return s(
    "g",
    {
      class: node.members ? "op fold" : node.small ? "op small" : "op",
      role: "button",
      tabindex: "0",
      "aria-label": `${visible}, ${more}`,
      "aria-pressed": node.members ? null : String(chosen),
      "aria-expanded": node.members ? "false" : null,
      "data-op": node.members ? null : node.row.name,
      "data-key": node.key,
      "data-share": node.share,
      onclick: act,
      onkeydown: act,
    },
    s("rect", {
      x,
      y,
      width: wide,
      height: place.h,
      rx: round,
      fill: look.fill,
      stroke: look.edge,
      "stroke-width": chosen ? 2.4 : 1.1,
      "stroke-dasharray": node.before === 0 || node.members ? "4 3" : null,
    }),
    !node.members && s("rect", { x: x + 1, y: y + 4, width: 4, height: place.h - 8, rx: 2, fill: look.color }),
    labels({ ...node, tall: place.h }, x, y, wide, look),
    node.members && s("title", {}, `${node.members.map((m) => m.name).join(", ")}: click to unfold`),
  );
}

// An operator that only the pinned plan has: its name, how often it stands there, and its time.
export function ghost({ name, count, seconds: took }, x, y) {
  const p = palette();
  const content = `only pinned: ${name}${count > 1 ? ` ×${count}` : ""} ${seconds(took)}`;
  const wide = textWidth(content, 10.5) + 22;
  return {
    wide,
    element: s(
      "g",
      { class: "ghost" },
      s("rect", { x, y, width: wide, height: 20, rx: 10, fill: "none", stroke: p.accent, "stroke-dasharray": "4 3" }),
      text(x + 11, y + 14, content, { "font-size": 10.5, fill: p.muted }),
    ),
  };
}
