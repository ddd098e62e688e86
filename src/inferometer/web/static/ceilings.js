// The roofs of a plan: peaks of the formats it computes in.
import { state } from "./state.js";

const PLAIN = { "fp8-block": "fp8", w8a16: null, w4a16: null, int4: null, int2: null };

function formatOf(word, report) {
  const known = state.catalogue.precisions?.find((p) => p.name === word)?.compute;
  const names = (typeof known === "string" ? known.split(",") : (known ?? [word in PLAIN ? PLAIN[word] : word])).map(
    (name) => name?.trim(),
  );
  return names.find((name) => name in report.device.flops) ?? report.model.dtype;
}

// [{ name, flops }], fastest first
export function tops(report) {
  const roles = Object.entries(report.model.computed_as).filter(([role]) =>
    ["attn", "mlp", "experts", "shared", "head"].includes(role),
  );
  const moe = Object.values(report.phases).some((phase) => phase.ops.some((op) => op.kind === "moe"));
  const precisions = [
    report.model.dtype,
    ...roles.filter(([role]) => role !== "experts" || moe).map(([, word]) => word),
  ];
  const names = [...new Set(precisions.map((word) => formatOf(word, report)))].filter(
    (name) => report.device.flops[name],
  );
  return names.map((name) => ({ name, flops: report.device.flops[name] })).sort((a, b) => b.flops - a.flops);
}
