/** Prompts of the server that is looked at, and completions of their arguments and of templates. */
import { signal } from "@preact/signals";
import { McpError, type Params } from "./connection";
import { here, listAll } from "./connections";
import { isObject } from "./json";
import { requestAnswered } from "./questions";

export interface Argument {
  name: string;
  title: string;
  description: string;
  required: boolean;
}

export interface Prompt {
  name: string;
  title: string;
  description: string;
  arguments: Argument[];
}

export const prompts = signal<Prompt[]>([]);
export const promptsProblem = signal<string | null>(null);
export const promptsLoading = signal(true);

export async function loadPrompts(): Promise<void> {
  const connection = here.value;
  promptsLoading.value = true;
  try {
    const listed = (await listAll("prompts/list", "prompts", connection)).map(asPrompt);
    if (connection !== here.value) return;
    prompts.value = listed;
    promptsProblem.value = null;
  } catch (error) {
    if (connection !== here.value) return;
    prompts.value = [];
    promptsProblem.value = isUnknown(error) ? null : (error as Error).message;
  } finally {
    if (connection === here.value) promptsLoading.value = false;
  }
}

/** Whether a server says that it has no such method: then it offers nothing of the kind. */
export function isUnknown(error: unknown): boolean {
  return error instanceof McpError && error.code === -32601;
}

export function getPrompt(name: string, args: Record<string, string>): Promise<Params> {
  const given = Object.fromEntries(Object.entries(args).filter(([, value]) => value !== ""));
  return requestAnswered(here.value, "prompts/get", { name, arguments: given });
}

export type Reference = { type: "ref/prompt"; name: string } | { type: "ref/resource"; uri: string };

/** What a server proposes for an argument; nothing where it proposes nothing. */
export async function complete(ref: Reference, name: string, value: string, others: Record<string, string>): Promise<string[]> {
  const connection = here.value;
  if (connection.about.value !== null && connection.about.value.capabilities["completions"] === undefined) return [];
  try {
    const context = Object.fromEntries(Object.entries(others).filter(([key, each]) => key !== name && each !== ""));
    const result = await connection.request("completion/complete", { ref, argument: { name, value }, ...(Object.keys(context).length === 0 ? {} : { context: { arguments: context } }) });
    const completion = isObject(result["completion"]) ? result["completion"]["values"] : [];
    return Array.isArray(completion) ? completion.map(String).slice(0, 100) : [];
  } catch {
    return [];
  }
}

function asPrompt(given: Params): Prompt {
  const name = String(given["name"]);
  return {
    name,
    title: String(given["title"] ?? name),
    description: String(given["description"] ?? ""),
    arguments: (Array.isArray(given["arguments"]) ? given["arguments"] : []).filter(isObject).map((each) => ({
      name: String(each["name"]),
      title: String(each["title"] ?? each["name"]),
      description: String(each["description"] ?? ""),
      required: each["required"] === true,
    })),
  };
}
