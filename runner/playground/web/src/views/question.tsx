/** A tool asks the person something before it goes on: an elicitation. */
import type { JSX } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { Form } from "../form/form";
import { isObject, type Json } from "../model/json";
import { answer, cancel, type Run } from "../model/runs";
import { blank } from "../model/schema";
import type { Schema } from "../model/tools";
import { plain } from "../model/plain";

interface Asked {
  key: string;
  message: string;
  schema: Schema | null;
  url: string | null;
}

export function Question({ run }: { run: Signal<Run> }): JSX.Element | null {
  const question = run.value.question;
  const asked = question === null ? [] : askedIn(question["inputRequests"]);
  const given = useSignal<Record<string, Json>>({});
  if (question === null) return null;
  if (asked.length === 0) {
    return (
      <div class="problem" role="alert">
        <p>The tool asks for something that this page cannot give.</p>
        <div><button class="button" onClick={() => cancel(run.value.id)}>End the call</button></div>
      </div>
    );
  }
  const value = (each: Asked): Json => given.value[each.key] ?? (each.schema === null ? {} : (blank(each.schema, each.schema) ?? {}));
  const reply = (action: "accept" | "decline"): void => {
    const responses = Object.fromEntries(asked.map((each) => [each.key, action === "accept" ? { action, content: value(each) } : { action }]));
    answer(run, responses);
  };
  return (
    <form class="stack question" aria-label="The tool asks" onSubmit={(event) => { event.preventDefault(); reply("accept"); }}>
      {asked.map((each) => (
        <div key={each.key} class="stack">
          <p>{plain(each.message)}</p>
          {each.url !== null && <p class="small">It wants you to open <code>{plain(each.url)}</code>. Open it yourself if you trust it.</p>}
          {each.schema !== null && <Form schema={each.schema} value={value(each)} strict={false} change={(next) => { given.value = { ...given.value, [each.key]: next }; }} />}
        </div>
      ))}
      <div class="row"><button class="button main">Answer</button><button type="button" class="button" onClick={() => reply("decline")}>Decline</button></div>
    </form>
  );
}

function askedIn(requests: Json | undefined): Asked[] {
  if (!isObject(requests)) return [];
  return Object.entries(requests).flatMap(([key, each]): Asked[] => {
    if (!isObject(each) || each["method"] !== "elicitation/create" || !isObject(each["params"])) return [];
    const { message, requestedSchema, url } = each["params"];
    return [{ key, message: String(message ?? "The tool asks for input."), schema: isObject(requestedSchema) ? requestedSchema : null, url: typeof url === "string" ? url : null }];
  });
}
