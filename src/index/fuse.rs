//! Evidence fusion: what words and what meaning say about a chunk, each in nats, added.
//!
//! S(d) = λ · B(d) + ln(1 + C / E(d)). B is BM25 without its (k1 + 1) factor. E is the number of chunks expected to be
//! this close to the query by chance: cosines far from the best thin out exponentially, so two numbers read off the
//! query's own cosines, θ and β, say how many. No constant depends on the model, and a side that knows nothing adds the
//! same little to every chunk, where fusion of ranks gives its best one full marks.
//!
//! Pure functions. Refuses: candidates, texts, and anything of an index.

use crate::model::Weights;

/// How many chunks are close to a query by chance: ln E(cos) = ln k + shift − (cos − θ)/β.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Chunks whose cosines were looked at.
    pub n: usize,
    /// Place of θ among the best.
    pub k: usize,
    pub theta: f32,
    pub beta: f32,
    /// ln(chunks of the store / n): a group's fit counts chunks of the whole store.
    pub shift: f32,
}

/// Fewer cosines than this say nothing about chance.
pub const FEWEST: usize = 10;

/// Where filters leave fewer chunks, chance is told by all that there are.
pub const FEWEST_WITHIN_FILTERS: usize = 50;

/// Cosines are wanted to this place, best first, whatever the size of the store.
pub const MOST: usize = 300;

/// θ is the place of one chunk in so many: in a small store the spread is in doubt for want of cosines, so as many are
/// read as still lie in the tail.
const FIFTH: usize = 5;

/// As many cosines as the spread of the whole store is worth to a group's: much to the eight that tell a tiny group's,
/// little to the 240 of a large one, whose own spread is surer than any other's.
const LEAN: f32 = 10.0;

/// Spreads below this are rounding: all chunks are equally far.
const LEAST_BETA: f32 = 1e-5;

impl Fit {
    /// `n` chunks were scored, and `best` are the highest cosines of these, descending: `MOST` of them, or all; a
    /// shorter list is read as far as it goes. None if too few were scored or all are equally far.
    pub fn new(n: usize, best: &[f32]) -> Option<Fit> {
        let k = n.div_ceil(FIFTH).clamp(FEWEST, MOST).min(best.len());
        if n < FEWEST || k < FEWEST {
            return None;
        }
        let theta = best[k - 1];
        // The best of them may be the answers.
        let rest = &best[k / FIFTH..k];
        let spread: f64 = rest.iter().map(|cosine| f64::from(cosine - theta)).sum::<f64>() / rest.len() as f64;
        let beta = (spread + 1e-6) as f32;
        (beta > LEAST_BETA).then_some(Fit { n, k, theta, beta, shift: 0.0 })
    }

    /// The fit of a group in a store of `all` chunks.
    pub fn among(self, all: usize) -> Fit {
        Fit { shift: (all as f32 / self.n as f32).ln(), ..self }
    }

    /// The fit of a group, leaning on that of the whole store: few cosines leave their spread in doubt, and one that is
    /// read too small makes a chance neighbour look like an answer. It counts as if `LEAN` more had been seen, spread as
    /// in the store.
    pub fn leaning(self, whole: &Fit) -> Fit {
        let seen = (self.k - self.k / FIFTH) as f32;
        Fit { beta: (seen * self.beta + LEAN * whole.beta) / (seen + LEAN), ..self }
    }

    /// The fit where only one chunk in e^`thin` of the store has been scored: the others are taken to be like these.
    pub fn thinned(self, thin: f32) -> Fit {
        Fit { shift: self.shift + thin, ..self }
    }

    /// ln E.
    pub fn chance(&self, cosine: f32) -> f32 {
        (self.k as f32).ln() + self.shift - (cosine - self.theta) / self.beta
    }
}

impl Weights {
    /// λ · B.
    pub fn of_words(&self, b: f32) -> f32 {
        self.lambda * b
    }

    /// ln(1 + C/E), from ln E.
    pub fn of_meaning(&self, chance: f32) -> f32 {
        let x = self.c.ln() - chance;
        // Neither side overflows.
        if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
    }

    /// Where no fit is to be had, order takes its place: E is the rank, from 1, among one chunk in e^`thin`.
    pub fn of_rank(&self, rank: usize, thin: f32) -> f32 {
        self.of_meaning((rank as f32).ln() + thin)
    }
}

/// For Hangul, for other scripts and for chunks of both, whether words could not have found it: most of what the query
/// says, by idf, is written in the other script. Both scripts together can always match.
pub fn blind(mass: [f32; 2]) -> [bool; 3] {
    let half = (mass[0] + mass[1]) / 2.0;
    [half > 0.0 && mass[1] >= half, half > 0.0 && mass[0] >= half, false]
}

/// Where in the lexical list of a search over `n` chunks stands what the words could have given a chunk that they are
/// blind to: at its end, or at a twentieth of a store that is no longer than the list.
pub fn unseen(n: usize) -> usize {
    n.div_ceil(20).clamp(5, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: Weights = Weights { lambda: 0.7, c: 20.0 };

    fn close(found: f32, expected: f32) {
        assert!((found - expected).abs() < 1e-4 * expected.abs().max(1.0), "{found}, expected {expected}");
    }

    /// 1000 chunks, the best 300 of which lie 0.001 apart.
    fn ladder() -> Vec<f32> {
        (0..300).map(|i| 0.9 - 0.001 * i as f32).collect()
    }

    #[test]
    fn the_fit_is_read_off_the_best_fifth_without_the_best_of_them() {
        let fit = Fit::new(1000, &ladder()).unwrap();
        assert_eq!((fit.n, fit.k, fit.shift), (1000, 200, 0.0));
        // The 200th is 0.9 − 0.199; places 41 to 200 lie 0.159 … 0 above it, 0.0795 in the mean.
        close(fit.theta, 0.701);
        close(fit.beta, 0.079501);
        // ln 200 at θ, and one less for each β above it.
        close(fit.chance(0.701), 5.298317);
        close(fit.chance(0.701 + 0.079501), 4.298317);
        close(fit.chance(0.9), 5.298317 - 0.199 / 0.079501);
    }

    #[test]
    fn the_place_of_theta_has_bounds() {
        assert_eq!(Fit::new(12, &ladder()[..12]).unwrap().k, 10);
        assert_eq!(Fit::new(1_000_000, &ladder()).unwrap().k, 300);
        // A short list is read to its end.
        assert_eq!(Fit::new(1_000_000, &ladder()[..100]).unwrap().k, 100);
    }

    #[test]
    fn too_few_or_equal_cosines_have_no_fit() {
        assert_eq!(Fit::new(9, &ladder()[..9]), None);
        assert_eq!(Fit::new(0, &[]), None);
        assert_eq!(Fit::new(100, &[0.5; 100]), None);
        close(WEIGHTS.of_rank(1, 0.0), 21f32.ln());
        close(WEIGHTS.of_rank(20, 0.0), 2f32.ln());
        // The first of 8 of 160 says as much as the twentieth of all.
        close(WEIGHTS.of_rank(1, (160f32 / 8.0).ln()), 2f32.ln());
    }

    #[test]
    fn chunks_that_were_not_scored_are_counted_as_if_like_the_others() {
        let fit = Fit::new(1000, &ladder()).unwrap().thinned(4f32.ln());
        close(fit.chance(0.701), 5.298317 + 1.386294);
    }

    #[test]
    fn the_spread_of_a_small_group_leans_on_the_whole_stores() {
        let whole = Fit { n: 210, k: 21, theta: 0.84, beta: 0.010, shift: 0.0 };
        let small = Fit { n: 43, k: 10, theta: 0.80, beta: 0.002, shift: 0.0 };
        // Eight cosines of its own, ten of the store's.
        close(small.leaning(&whole).beta, (8.0 * 0.002 + 10.0 * 0.010) / 18.0);
        let large = Fit { n: 9000, k: 300, ..small };
        close(large.leaning(&whole).beta, (240.0 * 0.002 + 10.0 * 0.010) / 250.0);
        close(small.leaning(&whole).theta, 0.80);
    }

    #[test]
    fn a_group_counts_chunks_of_the_whole_store() {
        let fit = Fit::new(1000, &ladder()).unwrap().among(4000);
        // Four times as many chunks, four times as many by chance.
        close(fit.chance(0.701), 5.298317 + 1.386294);
    }

    #[test]
    fn evidence_in_nats() {
        close(WEIGHTS.of_words(10.0), 7.0);
        // As many by chance as C: ln 2.
        close(WEIGHTS.of_meaning(20f32.ln()), std::f32::consts::LN_2);
        // One in a million: ln(1 + 20e6).
        close(WEIGHTS.of_meaning(-13.815511), 16.811243);
        // A thousand times C.
        close(WEIGHTS.of_meaning(9.903488), 0.0009995);
        assert!(WEIGHTS.of_meaning(1e30) == 0.0 && WEIGHTS.of_meaning(-1e30).is_finite());
    }

    #[test]
    fn more_of_either_is_never_less() {
        let fit = Fit::new(1000, &ladder()).unwrap();
        let cosines = [-1.0, 0.0, 0.5, 0.701, 0.85, 0.9, 1.0];
        let evidence: Vec<f32> = cosines.iter().map(|cosine| WEIGHTS.of_meaning(fit.chance(*cosine))).collect();
        assert!(evidence.is_sorted(), "{evidence:?}");
        assert!(WEIGHTS.of_words(2.0) > WEIGHTS.of_words(1.0));
    }

    /// Cosines that follow the law of chance say at most 6.7 nats, for the closest of all, and a quarter of a nat
    /// beyond the hundredth of a thousand: words that differ by more are never overturned by a side that knows nothing.
    #[test]
    fn a_worthless_side_does_not_reorder_a_sure_one() {
        let cosines: Vec<f32> = (1..=300).map(|i| 0.8 - 0.01 * (i as f32 / 100.0).ln()).collect();
        let fit = Fit::new(1000, &cosines).unwrap();
        let luck: Vec<f32> = cosines.iter().map(|cosine| WEIGHTS.of_meaning(fit.chance(*cosine))).collect();
        assert!(luck[0] > 6.6 && luck[0] < 6.7 && luck[100] < 0.28, "{} {}", luck[0], luck[100]);
        // The worst case: the better by words, the farther by meaning. Neighbours are 6.3 nats apart.
        let words: Vec<f32> = (0..300).map(|place| WEIGHTS.of_words(9.0 * (300 - place) as f32)).collect();
        let fused: Vec<f32> = words.iter().zip(luck.iter().rev()).map(|(words, luck)| words + luck).collect();
        assert!(fused.is_sorted_by(|a, b| a > b), "{fused:?}");
        // Equal cosines say nothing at all, however they are ordered: there is no fit to read an order from.
        assert_eq!(Fit::new(1000, &[0.8; 300]), None);
    }

    #[test]
    fn what_words_cannot_see_has_a_place_in_the_list() {
        assert_eq!([0, 60, 1000, 2000, 1_000_000].map(unseen), [5, 5, 50, 100, 100]);
    }

    #[test]
    fn a_script_is_blind_where_the_other_asks() {
        // Hangul first.
        assert_eq!(blind([8.0, 2.0]), [false, true, false]);
        assert_eq!(blind([0.0, 5.0]), [true, false, false]);
        assert_eq!(blind([3.0, 3.0]), [true, true, false]);
        assert_eq!(blind([0.0, 0.0]), [false; 3]);
    }
}
