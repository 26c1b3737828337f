//! Dot products of one query with many rows of bytes: the inner loop of the scan, by whatever the processor offers.
//!
//! All kernels give the same integers, so which one runs changes no result. Refuses: floating point.

use std::sync::LazyLock;

/// A query in 16 bits. Products with bytes sum up in 32 bits whatever the row holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Query16 {
    words: Vec<i16>,
    /// What rounding to words left out, in `FINE` parts of one.
    rests: Vec<i16>,
    /// What a word counts.
    pub unit: f32,
}

const FINE: f32 = 256.0;

impl Query16 {
    pub fn new(query: &[f32]) -> Query16 {
        let most = query.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let sum: f32 = query.iter().map(|value| value.abs()).sum();
        // 128 × the sum of magnitudes stays below 2³¹, rounding up of each word included.
        let room = ((1u32 << 24) as f32 - 2.0 * query.len() as f32).max(1.0);
        let steps = match most > 0.0 {
            true => (f32::from(i16::MAX) / most).min(room / sum),
            false => 1.0,
        };
        let words = query.iter().map(|value| (value * steps).round() as i16).collect();
        let rests =
            query.iter().map(|value| ((value * steps - (value * steps).round()) * FINE).round() as i16).collect();
        Query16 { words, rests, unit: 1.0 / steps }
    }
}

/// Rows a call works on at most: their sums stay in the first-level cache.
pub const BLOCK: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// What the compiler makes of a plain loop; on ARM that is NEON.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Kernel {
    /// Those this processor runs, the fastest last.
    pub fn available() -> Vec<Kernel> {
        #[allow(unused_mut, reason = "other processors have only the one")]
        let mut kernels = vec![Kernel::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                kernels.push(Kernel::Avx2);
            }
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni") {
                kernels.push(Kernel::Vnni);
            }
        }
        kernels
    }

    pub fn fastest() -> Kernel {
        static FASTEST: LazyLock<Kernel> = LazyLock::new(|| Kernel::available().pop().unwrap_or(Kernel::Portable));
        *FASTEST
    }

    /// One sum for each row; `rows` lie behind each other.
    pub fn dots(self, query: &Query16, rows: &[i8], sums: &mut [i32]) {
        self.sums(&query.words, rows, sums);
    }

    /// The product with coordinates of 16 bits, 256 · high + low, in units of the query's words: exact but for what
    /// rounding to `FINE` leaves out, and the same on every machine.
    pub fn fine_dot(self, query: &Query16, high: &[i8], low: &[i8]) -> f64 {
        let whole = |words: &[i16]| {
            let (mut highs, mut lows) = ([0], [0]);
            self.sums(words, high, &mut highs);
            self.sums(words, low, &mut lows);
            256 * i64::from(highs[0]) + i64::from(lows[0])
        };
        whole(&query.words) as f64 + whole(&query.rests) as f64 / f64::from(FINE)
    }

    fn sums(self, words: &[i16], rows: &[i8], sums: &mut [i32]) {
        assert_eq!(rows.len(), words.len() * sums.len());
        match self {
            Kernel::Portable => portable(words, rows, sums),
            // SAFETY: these variants are handed out by `available` alone, which has asked the processor.
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => unsafe { x86::avx2(words, rows, sums) },
            #[cfg(target_arch = "x86_64")]
            Kernel::Vnni => unsafe { x86::vnni(words, rows, sums) },
        }
    }

    /// The sum over two rows; 0 if they differ in length.
    pub fn dot(self, a: &[i8], b: &[i8]) -> i32 {
        if a.len() != b.len() {
            return 0;
        }
        match self {
            Kernel::Portable => products(a, b),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 | Kernel::Vnni => unsafe { x86::dot(a, b) },
        }
    }
}

#[inline(always)]
fn products(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b))).sum()
}

fn portable(words: &[i16], rows: &[i8], sums: &mut [i32]) {
    if words.is_empty() {
        return sums.fill(0);
    }
    for (row, sum) in rows.chunks_exact(words.len()).zip(sums) {
        *sum = words.iter().zip(row).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Asks for the row that lies `AHEAD` further: the processor itself looks ahead to the end of a memory page only.
    #[inline(always)]
    fn fetch_ahead(row: &[i8]) {
        const AHEAD: usize = 4096;
        for line in (0..row.len()).step_by(64) {
            // SAFETY: a hint; an address outside of the rows is never read.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(AHEAD + line)) };
        }
    }

    #[target_feature(enable = "avx2")]
    pub fn avx2(words: &[i16], rows: &[i8], sums: &mut [i32]) {
        const LANES: usize = 16;
        let width = words.len();
        let whole = width / LANES * LANES;
        for (i, sum) in sums.iter_mut().enumerate() {
            let row = &rows[i * width..][..width];
            fetch_ahead(row);
            let mut total = [_mm256_setzero_si256(); 2];
            for (step, at) in (0..whole).step_by(LANES).enumerate() {
                // SAFETY: `at + LANES` lies within both slices, and the loads need no alignment.
                let (a, b) = unsafe {
                    let bytes = _mm_loadu_si128(row.as_ptr().add(at).cast());
                    (_mm256_loadu_si256(words.as_ptr().add(at).cast()), _mm256_cvtepi8_epi16(bytes))
                };
                total[step % 2] = _mm256_add_epi32(total[step % 2], _mm256_madd_epi16(a, b));
            }
            let total = _mm256_add_epi32(total[0], total[1]);
            let half = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
            let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
            let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b10_11_00_01>(half));
            *sum = _mm_cvtsi128_si32(half) + tail(&words[whole..], &row[whole..]);
        }
    }

    /// What the compiler makes of the plain loop with wider registers.
    #[target_feature(enable = "avx2")]
    pub fn dot(a: &[i8], b: &[i8]) -> i32 {
        super::products(a, b)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub fn vnni(words: &[i16], rows: &[i8], sums: &mut [i32]) {
        const LANES: usize = 32;
        let width = words.len();
        let whole = width / LANES * LANES;
        for (i, sum) in sums.iter_mut().enumerate() {
            let row = &rows[i * width..][..width];
            fetch_ahead(row);
            let mut total = [_mm512_setzero_si512(); 2];
            for (step, at) in (0..whole).step_by(LANES).enumerate() {
                // SAFETY: `at + LANES` lies within both slices, and the loads need no alignment.
                let (a, b) = unsafe {
                    let bytes = _mm256_loadu_si256(row.as_ptr().add(at).cast());
                    (_mm512_loadu_si512(words.as_ptr().add(at).cast()), _mm512_cvtepi8_epi16(bytes))
                };
                total[step % 2] = _mm512_dpwssd_epi32(total[step % 2], a, b);
            }
            let total = _mm512_reduce_add_epi32(_mm512_add_epi32(total[0], total[1]));
            *sum = total + tail(&words[whole..], &row[whole..]);
        }
    }

    fn tail(words: &[i16], row: &[i8]) -> i32 {
        words.iter().zip(row).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64*
    fn noise(state: &mut u64) -> u32 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    #[test]
    fn all_kernels_give_the_same_integers() {
        let mut state = 7;
        assert!(Kernel::available().contains(&Kernel::Portable));
        for width in [1, 15, 16, 31, 32, 33, 47, 384, 385, 768, 1024, 3072] {
            for extreme in [false, true] {
                let query: Vec<f32> = (0..width)
                    .map(|_| if extreme { 1.0 } else { noise(&mut state) as f32 / u32::MAX as f32 - 0.5 })
                    .collect();
                let query = Query16::new(&query);
                let rows: Vec<i8> =
                    (0..5 * width).map(|_| if extreme { -128 } else { noise(&mut state) as i8 }).collect();
                // In 64 bits nothing overflows.
                let exact: Vec<i32> = rows
                    .chunks(width)
                    .map(|row| row.iter().zip(&query.words).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum::<i64>())
                    .map(|sum| i32::try_from(sum).expect("room for every row"))
                    .collect();
                for kernel in Kernel::available() {
                    let mut sums = vec![1; 5];
                    kernel.dots(&query, &rows, &mut sums);
                    assert_eq!(sums, exact, "{kernel:?}, {width} dimensions");
                    let pair = rows[..width].iter().zip(&rows[width..]).map(|(a, b)| i32::from(*a) * i32::from(*b));
                    assert_eq!(kernel.dot(&rows[..width], &rows[width..2 * width]), pair.sum::<i32>());
                }
            }
        }
    }

    #[test]
    fn both_halves_make_a_product_as_fine_as_floats() {
        let mut state = 11;
        for width in [1, 33, 384, 1024] {
            let query: Vec<f32> = (0..width).map(|_| noise(&mut state) as f32 / u32::MAX as f32 - 0.5).collect();
            let length = query.iter().map(|value| value * value).sum::<f32>().sqrt();
            let words = Query16::new(&query);
            let [high, low]: [Vec<i8>; 2] = [(); 2].map(|()| (0..width).map(|_| noise(&mut state) as i8).collect());
            let row = high.iter().zip(&low).map(|(high, low)| f64::from(256 * i32::from(*high) + i32::from(*low)));
            let exact: f64 = row.clone().zip(&query).map(|(row, query)| row * f64::from(*query)).sum();
            let most = row.map(|row| row * row).sum::<f64>().sqrt() * f64::from(length);
            for kernel in Kernel::available() {
                let found = kernel.fine_dot(&words, &high, &low) * f64::from(words.unit);
                assert!((found - exact).abs() < 2e-7 * most, "{kernel:?}, {width} dimensions: {found}, {exact}");
            }
        }
    }

    #[test]
    fn a_query_without_length_is_far_from_everything() {
        let query = Query16::new(&[0.0; 4]);
        let mut sums = [9];
        Kernel::fastest().dots(&query, &[1, 2, 3, 4], &mut sums);
        assert_eq!(sums, [0]);
    }
}
