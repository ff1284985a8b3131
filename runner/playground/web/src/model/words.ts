/** Numbers as people of the language that is spoken read them. */
import { T } from "../texts/language";

export const seconds = (value: number): string => T.numbers.seconds(value);
export const duration = (ms: number): string => T.numbers.duration(ms);
export const size = (bytes: number): string => T.numbers.size(bytes);
export const count = (value: number): string => T.numbers.count(value);
/** How many characters, in short. */
export const length = (characters: number): string => T.numbers.length(characters);
/** How long ago or ahead an ISO time is. */
export const ago = (iso: string): string => T.numbers.ago(iso);
export const until = ago;
