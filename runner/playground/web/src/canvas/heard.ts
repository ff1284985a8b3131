/**
 * How loud a sound is, noted while it is played: for compressed sound, of which nobody knows beforehand how much it holds.
 *
 * Source: Web Audio API, "The AnalyserNode Interface".
 */

interface Ear {
  context: AudioContext;
  analyser: AnalyserNode;
}

// A player is led through one of these for as long as it is there: it can be led away once, and not back.
const ears = new WeakMap<HTMLAudioElement, Ear>();

/** Note the loudest moments in `parts` of the sound while it is played, and tell `changed`; return what ends that. */
export function hear(audio: HTMLAudioElement, parts: number[], changed: () => void): () => void {
  let frame = 0;
  let last = 0;
  const partNow = (): number => Math.min(parts.length - 1, Math.floor((audio.currentTime / audio.duration) * parts.length));
  const look = (ear: Ear, samples: Float32Array<ArrayBuffer>): void => {
    ear.analyser.getFloatTimeDomainData(samples);
    const loud = Math.min(1, samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0));
    const now = audio.duration > 0 && Number.isFinite(audio.duration) ? partNow() : -1;
    // Between two looks several parts may go by.
    for (let at = last < now && now - last < parts.length / 10 ? last + 1 : now; at >= 0 && at <= now; at++) parts[at] = Math.max(parts[at] ?? 0, loud);
    last = now;
    changed();
    frame = audio.paused ? 0 : requestAnimationFrame(() => look(ear, samples));
  };
  const played = (): void => {
    const ear = earOf(audio);
    if (ear === null || frame !== 0) return;
    void ear.context.resume();
    last = partNow();
    frame = requestAnimationFrame(() => look(ear, new Float32Array(ear.analyser.fftSize)));
  };
  audio.addEventListener("play", played);
  return () => {
    audio.removeEventListener("play", played);
    cancelAnimationFrame(frame);
  };
}

function earOf(audio: HTMLAudioElement): Ear | null {
  const known = ears.get(audio);
  if (known !== undefined) return known;
  try {
    const context = new AudioContext();
    const analyser = context.createAnalyser();
    context.createMediaElementSource(audio).connect(analyser).connect(context.destination);
    const ear = { context, analyser };
    ears.set(audio, ear);
    return ear;
  } catch {
    // Without it the sound is played all the same.
    return null;
  }
}
