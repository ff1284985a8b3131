/** Resources: browse, fill in templates, read, follow. Source: requirements S4-98 and S4-99. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { here } from "../model/connections";
import type { Params } from "../model/connection";
import { drafted } from "../model/drafts";
import { info } from "../model/info";
import { toJson } from "../model/json";
import { follow, followed, loadResources, readResource, resources, resourcesLoading, resourcesProblem, templates, updated, type Resource, type ResourceTemplate } from "../model/resources";
import { route, to } from "../model/route";
import { plain } from "../model/plain";
import { size } from "../texts/numbers";
import { Completed } from "./completed";
import { Content } from "./contents";
import { SaveRequest } from "./save_request";
import { bringIntoSight } from "./sight";

export function ResourcesView(): JSX.Element {
  useEffect(() => {
    void loadResources();
  }, [here.value]);
  const servers = [...new Set(resources.value.map((each) => each.server))];
  const uri = route.value.rest;
  return (
    <div class="stack">
      <header class="row"><h1 class="grow">Resources</h1><button class="button quiet" onClick={() => void loadResources()}>Reload</button></header>
      {resourcesProblem.value !== null && <p class="problem" role="alert">{resourcesProblem.value}</p>}
      <div class="call">
        <div class="stack">
          {servers.map((server) => (
            <section key={server} class="card" aria-label={server || "Own resources"}>
              <header><h2>{server || "Own"}</h2></header>
              <ul class="tools body">{resources.value.filter((each) => each.server === server).map((each) => <Entry key={each.uri} resource={each} here={each.uri === uri} />)}</ul>
            </section>
          ))}
          {resourcesLoading.value && resources.value.length === 0 && <p class="soft" role="status">Loading…</p>}
          {!resourcesLoading.value && resources.value.length === 0 && <div class="card empty"><p>This server offers no resources.</p></div>}
          {templates.value.length > 0 && (
            <section class="card" aria-label="Templates">
              <header><h2>Templates</h2></header>
              <div class="body stack">{templates.value.map((each) => <Template key={each.uriTemplate} {...each} />)}</div>
            </section>
          )}
        </div>
        {uri === "" ? <div class="card empty"><p>Choose a resource to read it.</p></div> : <Read key={uri} uri={uri} />}
      </div>
    </div>
  );
}

function Entry({ resource, here }: { resource: Resource; here: boolean }): JSX.Element {
  return (
    <li>
      <a href={to("resources", resource.uri)} aria-current={here ? "page" : undefined}>
        <span class="row"><span class="mono">{plain(resource.title)}</span>{updated.value.has(resource.uri) && <span class="badge network">updated</span>}</span>
        <span class="about">{plain(resource.description || resource.uri)}</span>
      </a>
    </li>
  );
}

function Template({ uriTemplate, name, description, server }: ResourceTemplate): JSX.Element {
  const fields = fieldsOf(uriTemplate);
  const values = drafted<Record<string, string>>(`template ${here.value.name} ${info.value?.user ?? ""} ${uriTemplate}`, "values", () => ({}));
  const open = (event: Event): void => {
    event.preventDefault();
    location.hash = to("resources", filled(uriTemplate, values.value)).slice(1);
  };
  return (
    <form class="stack template" aria-label={plain(uriTemplate)} onSubmit={open}>
      <div>
        <span class="row"><span class="mono">{plain(name)}</span>{server !== "" && <span class="badge">{server}</span>}</span>
        {description !== "" && <p class="soft small">{plain(description)}</p>}
        <p class="soft small mono">{plain(uriTemplate)}</p>
      </div>
      {fields.map(({ name: each, required }) => (
        <Completed key={each} of={{ type: "ref/resource", uri: uriTemplate }} name={each} label={each} required={required} value={values.value[each] ?? ""} others={values.value}
          change={(value) => { values.value = { ...values.value, [each]: value }; }} />
      ))}
      <div><button class="button">Read</button></div>
    </form>
  );
}

/** The variables of a URI template. An address is whole without its query and its fragment, but not without the rest. */
export function fieldsOf(template: string): { name: string; required: boolean }[] {
  const fields = new Map<string, boolean>();
  for (const [, operator = "", list = ""] of template.matchAll(/\{([?&+#/.;]?)([^}]+)\}/g)) {
    const needed = !["?", "&", "#"].includes(operator);
    for (const each of list.split(",")) {
      const name = each.replace(/[*:].*$/, "");
      fields.set(name, needed || fields.get(name) === true);
    }
  }
  return [...fields].map(([name, required]) => ({ name, required }));
}

/** Expand a URI template, as far as RFC 6570's levels 1 to 3 go. */
export function filled(template: string, values: Record<string, string>): string {
  return template.replaceAll(/\{([?&+#/.;]?)([^}]+)\}/g, (_whole, operator: string, list: string) => {
    const given = list.split(",").map((each) => each.replace(/[*:].*$/, "")).filter((name) => (values[name] ?? "") !== "");
    if (given.length === 0) return "";
    const reserved = operator === "+" || operator === "#";
    const encode = (text: string): string => (reserved ? encodeURI(text) : encodeURIComponent(text));
    const pairs = given.map((name) => ("?&;".includes(operator || " ") ? `${name}=${encode(values[name] ?? "")}` : encode(values[name] ?? "")));
    const joint = { "?": "&", "&": "&", ";": ";", "/": "/", ".": "." }[operator] ?? ",";
    return (reserved ? operator.replace("+", "") : operator) + pairs.join(joint);
  });
}

function Read({ uri }: { uri: string }): JSX.Element {
  const contents = useSignal<Params[] | null>(null);
  const problem = useSignal<string | null>(null);
  const read = async (marked = false): Promise<void> => {
    try {
      contents.value = await readResource(uri, marked);
      problem.value = null;
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  useEffect(() => {
    void read();
  }, [uri]);
  const card = useRef<HTMLElement>(null);
  // Once more with what was read, for which there was no room before.
  useLayoutEffect(() => bringIntoSight(card.current), [contents.value === null]);
  const follows = followed.value.includes(uri);
  // A resource that is followed is read again when it changes, and stays marked.
  useEffect(() => {
    if (follows && updated.value.has(uri)) void read(true);
  }, [updated.value]);
  return (
    <section class="card sought" aria-label="Content" ref={card}>
      <header>
        <span class="mono grow clip">{plain(uri)}</span>
        {updated.value.has(uri) && <span class="badge network" role="status">updated</span>}
        <SaveRequest kind="resource" target={uri} args={() => ({})} />
        <button class="button" onClick={() => void read()}>Read again</button>
        <button class="button" aria-pressed={follows} onClick={() => void follow(uri, !follows)}>{follows ? "Subscribed" : "Subscribe"}</button>
      </header>
      <div class="body stack">
        <Facts uri={uri} />
        {problem.value !== null && <p class="problem" role="alert">{plain(problem.value)}</p>}
        {contents.value === null && problem.value === null && <p class="soft" role="status">Reading…</p>}
        {contents.value?.map((each, index) => <Content key={index} content={each} />)}
      </div>
    </section>
  );
}

/** What the list says of a resource beside its name. */
function Facts({ uri }: { uri: string }): JSX.Element | null {
  const known = resources.value.find((each) => each.uri === uri);
  if (known === undefined) return null;
  const facts = [known.mimeType, known.size === null ? null : size(known.size), known.description || null].filter((each) => each !== null);
  return (
    <div class="small soft">
      {facts.length > 0 && <p>{plain(facts.join(", "))}</p>}
      {Object.keys(known.annotations).length > 0 && <p class="mono">{plain(toJson(known.annotations))}</p>}
    </div>
  );
}
