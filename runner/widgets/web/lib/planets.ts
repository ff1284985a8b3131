/** The eight planets. Source: NASA Planetary Fact Sheet. */

export interface Planet {
  name: string;
  /** Kilometres. */
  radius: number;
  /** Astronomical units. */
  distance: number;
  /** Days for one way around the Sun. */
  year: number;
  /** Hours from noon to noon. */
  day: number;
  moons: number;
  /** Mean, in degrees Celsius. */
  temperature: number;
  colour: string;
  about: string;
}

export const PLANETS: readonly Planet[] = [
  { name: "Mercury", radius: 2439.5, distance: 0.387, year: 88, day: 4222.6, moons: 0, temperature: 167, colour: "#9b8f86", about: "The smallest planet and the fastest: a scorched day, then a frozen night." },
  { name: "Venus", radius: 6052, distance: 0.723, year: 224.7, day: 2802, moons: 0, temperature: 464, colour: "#d9a441", about: "The hottest planet, under clouds of sulphuric acid, turning the other way." },
  { name: "Earth", radius: 6378, distance: 1, year: 365.2, day: 24, moons: 1, temperature: 15, colour: "#3b82d0", about: "The only world known to have seas of water, and life." },
  { name: "Mars", radius: 3396, distance: 1.52, year: 687, day: 24.7, moons: 2, temperature: -65, colour: "#c8553d", about: "A cold desert with the highest volcano of the solar system, Olympus Mons." },
  { name: "Jupiter", radius: 71492, distance: 5.2, year: 4331, day: 9.9, moons: 97, temperature: -110, colour: "#c99b6f", about: "More massive than all other planets together; its red storm is centuries old." },
  { name: "Saturn", radius: 60268, distance: 9.57, year: 10747, day: 10.7, moons: 274, temperature: -140, colour: "#d8bd7a", about: "Light enough to float, circled by rings of ice hardly ten metres thick." },
  { name: "Uranus", radius: 25559, distance: 19.17, year: 30589, day: 17.2, moons: 28, temperature: -195, colour: "#6fbfc4", about: "An ice giant that rolls around the Sun on its side." },
  { name: "Neptune", radius: 24764, distance: 30.18, year: 59800, day: 16.1, moons: 16, temperature: -200, colour: "#4568d8", about: "The farthest planet, found by calculation, with the fastest winds of all." },
];
