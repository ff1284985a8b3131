/** What a model reads of a block of a result: no bytes, and no `_meta`, which is for programs and may hold links with tokens. */
import { isObject, type Json } from "./json";

export function seenByModel(value: Json): Json {
  if (Array.isArray(value)) return value.map(seenByModel);
  if (!isObject(value)) return value;
  const kept = Object.entries(value).filter(([key]) => key !== "_meta" && key !== "annotations");
  return Object.fromEntries(kept.map(([key, each]) => [key, (key === "data" || key === "blob") && typeof each === "string" ? `(${each.length} characters of base64)` : seenByModel(each)]));
}
