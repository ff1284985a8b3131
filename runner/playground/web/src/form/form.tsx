/** A form for a JSON Schema. What it cannot show it edits as raw JSON, so every value can be given. */
import type { ComponentChildren, JSX } from "preact";
import { useId, useLayoutEffect, useState } from "preact/hooks";
import { isObject, parseJson, toJson, type Json } from "../model/json";
import { blank, fault, fieldOf, itemOf, lacks, type Field } from "../model/schema";
import type { Schema } from "../model/tools";
import { FileField, takesFiles } from "./file_field";

export interface Editing {
  /** The schema at this place, unresolved. */
  schema: Json | undefined;
  root: Schema;
  /** undefined: left out. */
  value: Json | undefined;
  change: (value: Json | undefined) => void;
  name: string;
  required: boolean;
  /** Whether to say what is wrong already. */
  strict: boolean;
  /** Name of the argument at the top, by which parameters for files are known. */
  top: boolean;
}

export function Form({ schema, value, change, strict }: {
  schema: Schema;
  value: Json | undefined;
  change: (value: Json) => void;
  strict: boolean;
}): JSX.Element {
  const properties = isObject(schema["properties"]) ? Object.entries(schema["properties"]) : [];
  const shown = properties.filter(([key]) => key !== "username");
  if (shown.length === 0) return <p class="soft">This tool takes no arguments.</p>;
  return (
    <div class="stack">
      <Properties entries={shown} schema={schema} root={schema} value={value} change={change} strict={strict} top />
    </div>
  );
}

function Properties({ entries, schema, root, value, change, strict, top }: {
  entries: [string, Json][];
  schema: Schema;
  root: Schema;
  value: Json | undefined;
  change: (value: Json) => void;
  strict: boolean;
  top: boolean;
}): JSX.Element {
  const held = isObject(value) ? value : {};
  const required = Array.isArray(schema["required"]) ? schema["required"] : [];
  return (
    <>
      {entries.map(([key, property]) => (
        <Edit key={key} schema={property} root={root} name={key} value={own(held, key)} required={required.includes(key)}
          strict={strict} top={top} change={(next) => change(replaced(held, key, next))} />
      ))}
    </>
  );
}

function own(held: { [key: string]: Json }, key: string): Json | undefined {
  return Object.hasOwn(held, key) ? held[key] : undefined;
}

function replaced(held: { [key: string]: Json }, key: string, next: Json | undefined): { [key: string]: Json } {
  const kept = Object.entries(held).filter(([other]) => other !== key);
  const at = Object.keys(held).indexOf(key);
  if (next === undefined) return Object.fromEntries(kept);
  kept.splice(at < 0 ? kept.length : at, 0, [key, next]);
  return Object.fromEntries(kept);
}

export function Edit(editing: Editing): JSX.Element {
  const field = fieldOf(editing.schema, editing.root);
  if (editing.top && takesFiles(editing.name)) return <FileField {...editing} field={field} />;
  if (!suits(editing.value, field)) return <MisfitField {...editing} field={field} />;
  switch (field.kind) {
    case "object": return <ObjectField {...editing} field={field} />;
    case "array": return <ArrayField {...editing} field={field} />;
    case "map": return <MapField {...editing} field={field} />;
    case "union": return <UnionField {...editing} field={field} />;
    case "boolean": return <BooleanField {...editing} field={field} />;
    case "enum": return <EnumField {...editing} field={field} />;
    case "json": return <JsonField {...editing} field={field} />;
    default: return <TextField {...editing} field={field} />;
  }
}

type Shown = Editing & { field: Field };

/** Whether a field can show a value. What it cannot show it would hide, and throw away at the next key. */
function suits(value: Json | undefined, field: Field): boolean {
  if (value === undefined || value === null) return true;
  switch (field.kind) {
    case "string": case "boolean": return typeof value === field.kind;
    case "number": case "integer": return typeof value === "number" || typeof value === "bigint";
    case "array": return Array.isArray(value);
    case "object": case "map": return isObject(value);
    case "enum": return field.choices.some((choice) => toJson(choice) === toJson(value));
    default: return true;
  }
}

const UNFIT: Record<string, string> = { string: "not a text", boolean: "not true or false", number: "not a number", integer: "not a number", array: "not a list", object: "not an object", map: "not an object", enum: "none of the choices" };

/** A value of another kind than its field takes: as it is, with what is wrong with it. */
function MisfitField(editing: Shown): JSX.Element {
  const id = useId();
  const { field, value, change, name } = editing;
  const [typed, setTyped] = useState<string | null>(null);
  const text = typed ?? toJson(value ?? null, 2);
  return (
    <Labelled editing={{ ...editing, field: { ...field, kind: "json" } }} id={id} fault={UNFIT[field.kind] ?? "one of the choices"}>
      <textarea id={id} class="input" rows={Math.min(8, text.split("\n").length + 1)} spellcheck={false} aria-label={`${name}, as JSON`} aria-invalid aria-describedby={`${id}-hint ${id}-fault`} value={text}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setTyped(next);
          if (next.trim() === "") { change(undefined); return; }
          try { change(parseJson(next)); } catch { /* It goes on being written. */ }
        }} />
    </Labelled>
  );
}

/** Label, hint and fault around one control. */
export function Labelled({ editing, id, children, fault: said }: {
  editing: Shown;
  id: string;
  children: ComponentChildren;
  fault?: string | null;
}): JSX.Element {
  const { field, name, required, value, change } = editing;
  const wrong = said !== undefined ? said : value === undefined && !editing.strict ? null : fault(value, field, required);
  return (
    <div class="field" {...needed(wrong)} {...(typeof said === "string" && field.kind !== "string" ? { "data-unread": true } : {})}>
      <span class="label">
        <label for={id}>{name}</label>
        <Must required={required} />
        {field.nullable && (
          <button type="button" class="button quiet small" onClick={() => change(value === null ? undefined : null)} aria-pressed={value === null}>
            Send null
          </button>
        )}
        {!required && value !== undefined && !field.nullable && (
          <button type="button" class="button quiet small" onClick={() => change(undefined)} aria-label={`leave out ${name}`}>leave out</button>
        )}
      </span>
      {children}
      {field.description !== null && <span class="hint" id={`${id}-hint`}>{field.description}</span>}
      {wrong !== null && <span class="fault" id={`${id}-fault`} role="alert">{name}: {wrong}</span>}
    </div>
  );
}

/** Whether an argument must be given, in a word that people know from other forms. */
export function Must({ required }: { required: boolean }): JSX.Element {
  return required ? <span class="badge must">Required</span> : <span class="soft small may">Optional</span>;
}

/** Whether something stops a form: what it lacks, or what stands in a field and cannot be read as its value. */
export function isStopped(within: HTMLElement | null, value: Json, schema: Schema): boolean {
  return lacks(value, schema, schema) || (within?.querySelector("[data-unread]") ?? null) !== null;
}

/** Whether a form shows that something in it is not as it should be. */
export function isFaulty(within: HTMLElement | null): boolean {
  return (within?.querySelector(".fault") ?? null) !== null;
}

/** Move the focus to the first field that stops a form. */
export function focusNeeded(within: HTMLElement | null): void {
  const field = within?.querySelector("[data-needed], [data-unread]") ?? within?.querySelector(".field:has(> .fault)");
  field?.querySelector<HTMLElement>("input:not([type=file]), select, textarea, .button:not(.quiet)")?.focus();
}

/** Whether to mark a field as one that must be filled in before Run does anything. */
function needed(wrong: string | null): { "data-needed"?: true } {
  return wrong === "required" ? { "data-needed": true } : {};
}

function TextField(editing: Shown): JSX.Element {
  const id = useId();
  const { field, value, change } = editing;
  const [typed, setTyped] = useState<string | null>(null);
  const numeric = field.kind !== "string";
  const shown = typed ?? (value === undefined || value === null ? "" : typeof value === "string" ? value : toJson(value));
  const wrong = numeric && typed !== null && typed !== "" ? numberProblem(typed, field.kind) : undefined;
  const input = (text: string): void => {
    if (!numeric) {
      change(text === "" ? undefined : text);
      return;
    }
    setTyped(text);
    change(text === "" || numberProblem(text, field.kind) !== null ? undefined : parseJson(text));
  };
  // Input that is not a number stays as typed, until another value comes from elsewhere.
  useLayoutEffect(() => {
    if (typeof wrong === "string" && value !== undefined) setTyped(null);
  }, [value]);
  const shared = {
    id,
    class: "input",
    value: shown,
    placeholder: value === null ? "null" : placeholder(field),
    "aria-describedby": `${id}-hint ${id}-fault`,
    "aria-invalid": (wrong ?? null) !== null || (editing.strict && fault(value, field, editing.required) !== null),
    "aria-required": editing.required,
    onInput: (event: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => input(event.currentTarget.value),
    onBlur: () => { if (typeof wrong !== "string") setTyped(null); },
  };
  return (
    <Labelled editing={editing} id={id} {...(wrong === undefined ? {} : { fault: wrong })}>
      {isFree(field)
        // One element from the first letter to the last: another one would lose the focus.
        ? <textarea {...shared} class="input growing" spellcheck={false} rows={rowsOf(shown, longText(field) ? 3 : 1)} />
        : <input {...shared} type={typeOf(field) as "text"} {...(numeric ? { inputMode: "decimal" as const } : {})} />}
    </Labelled>
  );
}

/** A text of no format: it may have any length and any number of lines. */
function isFree(field: Field): boolean {
  return field.kind === "string" && FORMATS[String(field.schema["format"])] === undefined && field.schema["format"] !== "date-time";
}

const MOST_ROWS = 16;
const ROW_CHARACTERS = 40;

/** Rows of a text area, for browsers that do not grow it themselves. */
function rowsOf(text: string, least: number): number {
  const rows = text.slice(0, MOST_ROWS * ROW_CHARACTERS).split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / ROW_CHARACTERS)), 0);
  return Math.min(MOST_ROWS, Math.max(least, rows));
}

function longText(field: Field): boolean {
  const most = field.schema["maxLength"];
  return typeof most === "number" && most > 200;
}

type InputType = "date" | "time" | "email" | "url" | "password" | "text";

const FORMATS: Record<string, InputType> = { date: "date", time: "time", email: "email", uri: "url", password: "password" };

function typeOf(field: Field): InputType {
  const format = field.schema["format"];
  // Numbers stay text: an input for numbers would round long ones.
  return field.kind === "string" && typeof format === "string" ? (FORMATS[format] ?? "text") : "text";
}

function placeholder(field: Field): string {
  const examples = field.schema["examples"];
  if (Array.isArray(examples) && examples[0] !== undefined) return `e.g. ${typeof examples[0] === "string" ? examples[0] : toJson(examples[0])}`;
  return field.schema["format"] === "date-time" ? "2026-01-31T12:00:00Z" : "";
}

function numberProblem(text: string, kind: string): string | null {
  if (!/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return "not a number";
  return kind === "integer" && !/^-?\d+$/.test(text) ? "not a whole number" : null;
}

function BooleanField(editing: Shown): JSX.Element {
  const id = useId();
  const { value, change, name } = editing;
  return (
    <Labelled editing={editing} id={id}>
      <span class="row">
        <input id={id} type="checkbox" role="switch" class="switch" checked={value === true} aria-label={name} aria-describedby={`${id}-hint ${id}-fault`}
          onChange={(event) => change(event.currentTarget.checked)} />
        <span class="soft small" aria-hidden="true">{value === undefined ? "not set" : value === null ? "null" : String(value)}</span>
      </span>
    </Labelled>
  );
}

function EnumField(editing: Shown): JSX.Element {
  const id = useId();
  const { value, change, field, required, name } = editing;
  const at = value === null ? "null" : String(field.choices.findIndex((choice) => toJson(choice) === toJson(value)));
  return (
    <Labelled editing={editing} id={id}>
      <select id={id} class="input" value={value === undefined ? "-1" : at} aria-describedby={`${id}-hint ${id}-fault`} aria-label={name}
        onChange={(event) => {
          const picked = event.currentTarget.value;
          change(picked === "null" ? null : field.choices[Number(picked)]);
        }}>
        {(!required || value === undefined) && <option value="-1">{required ? "choose…" : "not set"}</option>}
        {field.choices.map((choice, index) => <option key={index} value={String(index)}>{field.names[index] ?? (typeof choice === "string" ? choice : toJson(choice))}</option>)}
        {field.nullable && <option value="null">null</option>}
      </select>
    </Labelled>
  );
}

function ObjectField(editing: Shown): JSX.Element {
  const { field, name, root, value, change, strict, required } = editing;
  const properties = isObject(field.schema["properties"]) ? Object.entries(field.schema["properties"]) : [];
  const absent = value === undefined || value === null;
  const wrong = strict ? fault(value, field, required) : null;
  return (
    <fieldset class="field stack" {...needed(wrong)}>
      <legend>{name}<Must required={required} /></legend>
      {field.description !== null && <span class="hint">{field.description}</span>}
      {absent ? (
        <div><button type="button" class="button" onClick={() => change(blank({ ...field.schema, default: undefined } as unknown as Json, root) ?? {})}>{`Fill in ${name}`}</button>{wrong !== null && <p class="fault" role="alert">{name}: {wrong}</p>}</div>
      ) : (
        <>
          <Properties entries={properties} schema={field.schema} root={root} value={value} change={change} strict={strict} top={false} />
          {!required && <div><button type="button" class="button quiet small" onClick={() => change(field.nullable ? null : undefined)}>Leave {name} out</button></div>}
        </>
      )}
    </fieldset>
  );
}

function ArrayField(editing: Shown): JSX.Element {
  const { field, name, root, value, change, strict, required } = editing;
  const items = Array.isArray(value) ? value : [];
  const shape = (index: number): Json | undefined => itemOf(field.schema, index);
  const wrong = value === undefined && !strict ? null : fault(value, field, required);
  return (
    <fieldset class="field stack" {...needed(wrong)}>
      <legend>{name}<Must required={required} /></legend>
      {field.description !== null && <span class="hint">{field.description}</span>}
      {items.map((item, index) => (
        <div key={index} class="item">
          <div class="grow">
            <Edit schema={shape(index)} root={root} name={`${name}[${index}]`} value={item} required strict={strict} top={false}
              change={(next) => change(items.map((other, at) => (at === index ? (next ?? emptied(item)) : other)))} />
          </div>
          <button type="button" class="button quiet" aria-label={`Remove ${name}[${index}]`} onClick={() => change(items.filter((_, at) => at !== index))}>×</button>
        </div>
      ))}
      <div class="row">
        <button type="button" class="button" onClick={() => change([...items, blank(shape(items.length), root) ?? first(shape(items.length), root)])}>{`Add to ${name}`}</button>
        {value !== undefined && !required && <button type="button" class="button quiet small" onClick={() => change(undefined)}>Leave {name} out</button>}
      </div>
      {wrong !== null && <span class="fault" role="alert">{name}: {wrong}</span>}
    </fieldset>
  );
}

function first(schema: Json | undefined, root: Schema): Json {
  const { kind } = fieldOf(schema, root);
  if (kind === "string") return "";
  if (kind === "number" || kind === "integer") return 0;
  return kind === "array" ? [] : kind === "object" || kind === "map" ? {} : null;
}

/** What stays of an item whose field was emptied: it keeps its place. */
function emptied(before: Json): Json {
  return typeof before === "string" ? "" : null;
}

function MapField(editing: Shown): JSX.Element {
  const { field, name, root, value, change, strict, required } = editing;
  const wrong = strict ? fault(value, field, required) : null;
  const held = isObject(value) ? Object.entries(value) : [];
  const [key, setKey] = useState("");
  return (
    <fieldset class="field stack" {...needed(wrong)}>
      <legend>{name}<Must required={required} /></legend>
      {field.description !== null && <span class="hint">{field.description}</span>}
      {wrong !== null && <span class="fault" role="alert">{name}: {wrong}</span>}
      {held.map(([each, item]) => (
        <div key={each} class="item">
          <div class="grow">
            <Edit schema={field.schema["additionalProperties"]} root={root} name={each} value={item} required strict={strict} top={false}
              change={(next) => change(Object.fromEntries(held.map(([k, v]) => [k, k === each ? (next ?? emptied(item)) : v])))} />
          </div>
          <button type="button" class="button quiet" aria-label={`Remove ${each}`} onClick={() => change(Object.fromEntries(held.filter(([k]) => k !== each)))}>×</button>
        </div>
      ))}
      <div class="item">
        <input class="input" aria-label={`New key of ${name}`} placeholder="new key" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        <button type="button" class="button" disabled={key === "" || held.some(([k]) => k === key)}
          onClick={() => { change(Object.fromEntries([...held, [key, blank(field.schema["additionalProperties"], root) ?? first(field.schema["additionalProperties"], root)]])); setKey(""); }}>Add</button>
      </div>
    </fieldset>
  );
}

function UnionField(editing: Shown): JSX.Element {
  const { field, name, root, value, change } = editing;
  const guessed = Math.max(0, field.forms.findIndex((form) => fits(value, form, root)));
  const [picked, setPicked] = useState<number | null>(null);
  const at = picked ?? guessed;
  return (
    <fieldset class="field stack">
      <legend>{name}<Must required={editing.required} /></legend>
      <select class="input" aria-label={`Form of ${name}`} value={String(at)}
        onChange={(event) => { const index = Number(event.currentTarget.value); setPicked(index); change(blank(field.forms[index], root)); }}>
        {field.forms.map((form, index) => <option key={index} value={String(index)}>{formName(form, root, index)}</option>)}
      </select>
      <Edit {...editing} key={at} schema={field.forms[at]} name={isObject(value) ? formName(field.forms[at] ?? {}, root, at) : name} />
    </fieldset>
  );
}

/** Its title; else the fixed value that tells it from the others, as `kind: "circle"` does; else its type. */
function formName(form: Schema, root: Schema, index: number): string {
  if (typeof form["title"] === "string") return form["title"];
  const properties = isObject(form["properties"]) ? Object.values(form["properties"]) : [];
  const fixed = properties.map((each) => fieldOf(each, root)).find((each) => each.kind === "enum" && each.choices.length === 1);
  if (fixed !== undefined) return String(fixed.choices[0]);
  return typeof form["type"] === "string" ? form["type"] : `form ${index + 1}`;
}

function fits(value: Json | undefined, form: Schema, root: Schema): boolean {
  const field = fieldOf(form, root);
  if (value === undefined || value === null || !suits(value, field)) return false;
  // Forms of objects are told apart by a fixed value in each, as `kind: "circle"`.
  const properties = isObject(value) && isObject(field.schema["properties"]) ? Object.entries(field.schema["properties"]) : [];
  return properties.every(([key, property]) => {
    const inner = fieldOf(property, root);
    return inner.kind !== "enum" || suits(own(value as { [key: string]: Json }, key), inner);
  });
}

function JsonField(editing: Shown): JSX.Element {
  const id = useId();
  const { value, change, name } = editing;
  const [typed, setTyped] = useState<string | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  return (
    <Labelled editing={editing} id={id} fault={wrong}>
      <textarea id={id} class="input" rows={4} spellcheck={false} aria-label={`${name}, as JSON`} placeholder="JSON"
        value={typed ?? (value === undefined ? "" : toJson(value, 2))}
        onInput={(event) => {
          const text = event.currentTarget.value;
          setTyped(text);
          if (text.trim() === "") { change(undefined); setWrong(null); return; }
          try { change(parseJson(text)); setWrong(null); } catch (error) { setWrong(`no JSON: ${(error as Error).message}`); }
        }}
        onBlur={() => { if (wrong === null) setTyped(null); }} />
    </Labelled>
  );
}
