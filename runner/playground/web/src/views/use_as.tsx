/** A way from a file to the tools that take files. */
import type { JSX } from "preact";
import type { Stored } from "../model/files";
import { isObject, toJson } from "../model/json";
import { to } from "../model/route";
import { blank } from "../model/schema";
import { tools } from "../model/tools";

/** Tools that take files, each with a link that fills this one in. */
export function UseAs({ file }: { file: Stored }): JSX.Element | null {
  const taking = tools.value.filter((tool) => tool.badges.includes("files"));
  if (taking.length === 0) return null;
  return (
    <select class="input compact" aria-label={`Use ${file.filename} with a tool`} value=""
      onChange={(event) => {
        const tool = taking.find((each) => each.name === event.currentTarget.value);
        if (tool !== undefined) location.hash = to("call", tool.name, { args: withFile(tool.inputSchema, file.filename) }).slice(1);
      }}>
      <option value="">Use with…</option>
      {taking.map((tool) => <option key={tool.name} value={tool.name}>{tool.name}</option>)}
    </select>
  );
}

function withFile(schema: Parameters<typeof blank>[1], filename: string): string {
  const begun = blank(schema, schema);
  const properties = isObject(schema["properties"]) ? schema["properties"] : {};
  const key = ["filename", "filenames", "file_names"].find((each) => Object.hasOwn(properties, each)) ?? "filename";
  return toJson({ ...(isObject(begun) ? begun : {}), [key]: key === "filename" ? filename : [filename] }, 2);
}
