//! Figures as lines of a table: what is typical, what the worst are like, and what was aimed at.

use std::time::Duration;

pub struct Figure {
    pub unit: Unit,
    pub typical: f64,
    pub tail: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Milliseconds,
    Microseconds,
    PerSecond,
    Percent,
    Times,
    /// Of bytes.
    Kilobytes,
    Megabytes,
}

/// In the figure's unit.
#[derive(Clone, Copy)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
    None,
}

pub fn head() {
    println!("{:<46}{:>14}{:>14}{:>16}", "", "median", "p99 or worst", "target");
}

impl Figure {
    /// The median and the 99th percentile.
    pub fn of_times(unit: Unit, times: Vec<Duration>) -> Figure {
        let scale = if unit == Unit::Microseconds { 1e6 } else { 1e3 };
        let times = sorted(times.iter().map(|time| time.as_secs_f64() * scale).collect());
        Figure { unit, typical: times[times.len() / 2], tail: times[times.len() * 99 / 100] }
    }

    /// The median and the lowest.
    pub fn of_rates(unit: Unit, rates: Vec<f64>) -> Figure {
        let rates = sorted(rates);
        Figure { unit, typical: rates[rates.len() / 2], tail: rates[0] }
    }

    /// The median and the largest, of bytes.
    pub fn of_sizes(unit: Unit, sizes: Vec<f64>) -> Figure {
        let sizes = sorted(sizes);
        Figure { unit, typical: sizes[sizes.len() / 2], tail: sizes[sizes.len() - 1] }
    }

    pub fn print(&self, name: &str, target: Target) {
        let unit = self.unit;
        let (aim, met) = match target {
            Target::AtMost(most) => (format!("≤ {}", unit.show(most)), self.typical <= most),
            Target::AtLeast(least) => (format!("≥ {}", unit.show(least)), self.typical >= least),
            Target::None => (String::new(), true),
        };
        let mark = if met { "" } else { "  MISSED" };
        println!("{name:<46}{:>14}{:>14}{aim:>16}{mark}", unit.show(self.typical), unit.show(self.tail));
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::Milliseconds => format!("{value:.2} ms"),
            Unit::Microseconds => format!("{value:.1} µs"),
            Unit::PerSecond => format!("{value:.0}/s"),
            Unit::Percent => format!("{value:.0} %"),
            Unit::Times => format!("{value:.1} ×"),
            Unit::Kilobytes => format!("{:.1} KiB", value / 1024.0),
            Unit::Megabytes => format!("{:.1} MiB", value / 1024.0 / 1024.0),
        }
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
