// A plan as the server wants it: the model is always named.
import { defaultOf } from "./state.js";

export const withModel = (plan) => ({ model: defaultOf("model") ?? "llama-3.1-8b", ...plan });
