//! One value of the file, read as what it should be.

use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::notes::Notes;
use super::source::Span;
use super::value;
use super::words::{quoted, suggestion};
use crate::rules::Share;

/// A value of the file.
pub(super) struct Item<'a> {
    value: &'a DeValue<'a>,
    pub(super) span: Span,
    /// Its key, also if it is in a list.
    pub(super) key: &'static str,
    listed: bool,
    pub(super) notes: &'a Notes<'a>,
}

/// Something read, and where it was.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Span,
}

/// A word that a key knows.
pub(super) type Word<T> = (&'static str, T);

impl<'a> Item<'a> {
    pub(super) fn new(value: &'a DeValue<'a>, span: Span, key: &'static str, notes: &'a Notes<'a>) -> Self {
        Self {
            value,
            span,
            key,
            listed: false,
            notes,
        }
    }

    /// Says that the value is wrong.
    pub(super) fn refuse(&self, problem: impl Into<String>, hint: impl Into<String>) {
        self.notes.error(self.span, problem, hint);
    }

    /// The value with its place.
    pub(super) fn at<T>(&self, value: T) -> At<T> {
        At {
            value,
            span: self.span,
        }
    }

    /// Whether it is a text; says nothing if not.
    pub(super) fn is_text(&self) -> bool {
        self.value.is_str()
    }

    /// Whether it is a table; says nothing if not.
    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    /// Whether it is a list; says nothing if not.
    pub(super) fn is_list(&self) -> bool {
        self.value.is_array()
    }

    /// Whether it is an integer; says nothing if not.
    pub(super) fn is_integer(&self) -> bool {
        self.value.is_integer()
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => self.wrong_type("a text", "\"…\""),
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.value {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.wrong_type("true or false", "true"),
        }
    }

    /// An integer that is not negative.
    pub(super) fn integer<T: TryFrom<u64>>(&self) -> Option<T> {
        let DeValue::Integer(integer) = self.value else {
            return self.wrong_type("an integer", "100");
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            let (problem, hint) = match integer.as_str().starts_with('-') {
                true => ("negative", "an integer from 0 up"),
                false => ("too large", "a smaller integer"),
            };
            self.refuse(format!("`{}` is {problem}", self.key), hint);
        }
        number
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        let DeValue::String(text) = self.value else {
            return self.wrong_type("a duration", "\"30s\"");
        };
        let length = value::duration(text);
        if length.is_none() {
            self.refuse(format!("{} is not a duration", quoted(text)), value::DURATION);
        }
        length
    }

    pub(super) fn size(&self) -> Option<u64> {
        match self.value {
            DeValue::Integer(_) => self.integer(),
            DeValue::String(text) => {
                let size = value::size(text);
                if size.is_none() {
                    self.refuse(format!("{} is not a size", quoted(text)), value::SIZE);
                }
                size
            }
            _ => self.wrong_type("a size", "\"64KiB\""),
        }
    }

    /// The value of one of the words in `known`; those in `later` are not supported yet.
    pub(super) fn word<T: Copy>(&self, known: &[Word<T>], later: &[&str]) -> Option<T> {
        let text = self.text()?;
        if let Some((_, value)) = known.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let known: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        if later.contains(&text) {
            let problem = format!("`{} = {}` is not supported yet", self.key, quoted(text));
            self.refuse(problem, suggestion("", &known));
        } else {
            let problem = format!("{} is not a word that `{}` knows", quoted(text), self.key);
            self.refuse(problem, suggestion(text, &known));
        }
        None
    }

    /// A part of a whole: more than 0, at most 1.
    pub(super) fn share(&self) -> Option<Share> {
        let written = match self.value {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) => integer.as_str(),
            _ => return self.wrong_type("a number", "0.5"),
        };
        let millionths = written
            .replace('_', "")
            .parse::<f64>()
            .map(|share| (share * 1e6).round());
        let share = millionths.ok().filter(|share| (1.0..=1e6).contains(share));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to a million"
        )]
        let share = share.and_then(|share| Share::millionths(share as u32));
        if share.is_none() {
            self.refuse(
                format!("`{}` is out of range", self.key),
                "more than 0, at most 1",
            );
        }
        share
    }

    pub(super) fn list(&self) -> Option<Vec<Item<'a>>> {
        let DeValue::Array(array) = self.value else {
            return self.wrong_type("a list", "[\"…\"]");
        };
        let element = |value: &'a Spanned<DeValue<'a>>| Item {
            listed: true,
            ..Self::new(value.get_ref(), value.span().into(), self.key, self.notes)
        };
        Some(array.iter().map(element).collect())
    }

    pub(super) fn table(&self) -> Option<&'a DeTable<'a>> {
        match self.value {
            DeValue::Table(table) => Some(table),
            _ => self.wrong_type("a table", "{ … }"),
        }
    }

    /// The value, if it is from `least` to `most`.
    pub(super) fn within<T: PartialOrd + Copy>(
        &self,
        value: T,
        least: T,
        most: T,
        show: fn(T) -> String,
    ) -> Option<T> {
        let bound = match () {
            () if value < least => format!("at least {}", show(least)),
            () if value > most => format!("at most {}", show(most)),
            () => return Some(value),
        };
        self.refuse(format!("`{}` is out of range", self.key), bound);
        None
    }

    /// Says of what type the value must be; the hint shows `example`.
    pub(super) fn wrong_type<T>(&self, wanted: &str, example: &str) -> Option<T> {
        let found = match self.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let (key, hint) = match self.listed {
            true => (
                format!("an element of `{}`", self.key),
                format!("`{} = [{example}]`", self.key),
            ),
            false => (format!("`{}`", self.key), format!("`{} = {example}`", self.key)),
        };
        self.refuse(
            format!("{key} must be {wanted}, not {found}"),
            format!("write it like {hint}"),
        );
        None
    }
}
