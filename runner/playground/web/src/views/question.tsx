/** What a tool wants to know before it goes on, in the era in which its answer says so. All of it is answered together. */
import type { JSX } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { isAsk } from "../model/questions";
import type { Params } from "../model/connection";
import { isObject, type Json } from "../model/json";
import { plain } from "../model/plain";
import { answer, cancel, type Run } from "../model/runs";
import { Answering } from "./asks";
import { forget } from "../model/drafts";
import { bringIntoSight } from "./sight";
import { T } from "../texts/texts";

interface Asked {
  key: string;
  method: string;
  params: Params;
}

export function Question({ run }: { run: Signal<Run> }): JSX.Element | null {
  const question = run.value.question;
  const given = useSignal<Params>({});
  const card = useRef<HTMLDivElement>(null);
  if (question === null) return null;
  const asked = askedIn(question["inputRequests"]);
  if (asked.length === 0) {
    return (
      <div class="problem" role="alert">
        <p>{T.run.unanswerable}</p>
        <div><button class="button" onClick={() => cancel(run.value.id)}>{T.run.endCall}</button></div>
      </div>
    );
  }
  const reply = (key: string, result: Params): void => {
    const all = { ...given.value, [key]: result };
    given.value = all;
    forget(`${run.value.id} ${key}`);
    if (asked.every((each) => all[each.key] !== undefined)) {
      given.value = {};
      answer(run, all);
      // What had the focus goes away with the question.
      card.current?.closest<HTMLElement>("[data-run]")?.focus();
    }
  };
  return (
    <div class="stack" ref={card}>
      {asked.filter((each) => given.value[each.key] === undefined).map((each) => (
        <div key={each.key} class="question stack">
          <h2>{plain(T.asks[each.method] ?? each.method)}</h2>
          <Answering method={each.method} params={each.params} draft={`${run.value.id} ${each.key}`} answer={(result) => reply(each.key, result)} />
        </div>
      ))}
    </div>
  );
}

/** Show the question that waits within an element, and let the person answer it. */
export function focusQuestion(within: HTMLElement | null): void {
  bringIntoSight(within);
  within?.querySelector<HTMLElement>(".question textarea, .question input, .question select, .question button")?.focus();
}

function askedIn(requests: Json | undefined): Asked[] {
  if (!isObject(requests)) return [];
  return Object.entries(requests).flatMap(([key, each]): Asked[] => {
    const method = isObject(each) ? String(each["method"]) : "";
    if (!isObject(each) || !isAsk(method)) return [];
    return [{ key, method, params: isObject(each["params"]) ? each["params"] : {} }];
  });
}
