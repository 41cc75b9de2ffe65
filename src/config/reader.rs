//! Reads a table key by key, and says what is wrong with each.
//!
//! A [`Section`] is asked for every key that it may have, whether or not the file has it; what is left over when it is
//! [finished](Section::finish) is unknown. So the name of a key stands in one place: where it is asked for.

use std::cell::RefCell;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::item::{Item, Word};
use super::known::Shape;
use super::notes::Notes;
use super::source::Span;
use super::value;
use super::words::{quoted, suggestion};

/// Longer than anybody waits, and short enough to be added to any instant.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A table of the file, or one that the file leaves out.
pub(super) struct Section<'a> {
    table: Option<&'a DeTable<'a>>,
    /// What a missing key points at.
    pub(super) header: Span,
    /// As in a header, without brackets; empty for the file as a whole.
    name: String,
    /// As in a message.
    title: String,
    asked: RefCell<Vec<&'static str>>,
    refused: RefCell<Vec<&'static str>>,
    pub(super) notes: &'a Notes<'a>,
}

impl<'a> Section<'a> {
    /// The file as a whole.
    pub(super) fn root(table: &'a DeTable<'a>, notes: &'a Notes<'a>) -> Self {
        Self::new(Some(table), Span::default(), "", "", notes)
    }

    /// A table that is the value of a key or an element of a list, without a header of its own.
    pub(super) fn inline(item: &Item<'a>) -> Option<Self> {
        let title = format!("`{}`", item.key);
        Some(Self::new(
            Some(item.table()?),
            item.span,
            item.key,
            &title,
            item.notes,
        ))
    }

    fn new(
        table: Option<&'a DeTable<'a>>,
        header: Span,
        name: &str,
        title: &str,
        notes: &'a Notes<'a>,
    ) -> Self {
        Self {
            table,
            header,
            name: name.to_owned(),
            title: title.to_owned(),
            asked: RefCell::default(),
            refused: RefCell::default(),
            notes,
        }
    }

    /// The value of a key, if the file has it.
    pub(super) fn item(&self, key: &'static str) -> Option<Item<'a>> {
        self.asked.borrow_mut().push(key);
        self.shape(key, || Shape::Own);
        let value = self.table?.get(key)?;
        Some(Item::new(value.get_ref(), value.span().into(), key, self.notes))
    }

    /// Says what a key may be, for the schema.
    fn shape(&self, key: &'static str, shape: impl FnOnce() -> Shape) {
        self.notes.asked(&self.name, key, shape);
    }

    /// The value of a key that the file must have.
    pub(super) fn required(&self, key: &'static str, hint: &str) -> Option<Item<'a>> {
        let item = self.item(key);
        self.notes.required(&self.name, key);
        if item.is_none() {
            let problem = format!("`{key}` is missing{}", self.inside());
            self.notes.absent(key, self.header, problem, hint);
        }
        item
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &'static str, default: bool) -> bool {
        self.shape(key, || Shape::Flag { default });
        self.item(key).and_then(|item| item.flag()).unwrap_or(default)
    }

    /// An integer from `least` to `most`.
    pub(super) fn number(&self, key: &'static str, default: usize, least: usize, most: usize) -> usize {
        self.shape(key, || Shape::Number { default, least, most });
        let read = |item: Item<'a>| {
            let number = item.integer()?;
            item.within(number, least, most, |number| number.to_string())
        };
        self.item(key).and_then(read).unwrap_or(default)
    }

    /// A number of bytes from `least` to `most`.
    pub(super) fn size(&self, key: &'static str, default: u64, least: u64, most: u64) -> u64 {
        self.shape(key, || Shape::Size { default, least, most });
        let read = |item: Item<'a>| {
            let size = item.size()?;
            item.within(size, least, most, |size| size.to_string())
        };
        self.item(key).and_then(read).unwrap_or(default)
    }

    /// A length of time of at least `least`.
    pub(super) fn duration(&self, key: &'static str, default: Duration, least: Duration) -> Duration {
        self.shape(key, || Shape::Duration { default, least });
        let read = |item: Item<'a>| item.within(item.duration()?, least, LONGEST, value::show_duration);
        self.item(key).and_then(read).unwrap_or(default)
    }

    /// One of the words that the key knows.
    pub(super) fn word<T: Copy + PartialEq>(
        &self,
        key: &'static str,
        known: &[Word<T>],
        later: &[&str],
        default: T,
    ) -> T {
        self.shape(key, || Shape::Word {
            known: known.iter().map(|(word, _)| *word).collect(),
            default: known
                .iter()
                .find(|(_, value)| *value == default)
                .map(|(word, _)| *word),
        });
        let read = |item: Item<'a>| item.word(known, later);
        self.item(key).and_then(read).unwrap_or(default)
    }

    /// The elements of a list; `None` if the file has none.
    pub(super) fn list(&self, key: &'static str) -> Option<Vec<Item<'a>>> {
        self.item(key)?.list()
    }

    /// The table of a key; an empty one if the file leaves it out.
    pub(super) fn section(&self, key: &'static str) -> Section<'a> {
        self.shape(key, || Shape::Table);
        let (table, header) = match self.item(key) {
            Some(item) => (item.table(), item.span),
            None => (None, self.header),
        };
        let name = self.below(key);
        Self::new(table, header, &name, &format!("[{name}]"), self.notes)
    }

    /// The tables of a key that are named by the file, in its order; `None` if something else is among them.
    pub(super) fn named(&self, key: &'static str) -> Option<Vec<(&'a str, Section<'a>)>> {
        self.shape(key, || Shape::Named);
        let Some(item) = self.item(key) else {
            return Some(Vec::new());
        };
        let section = |(name, value): (&'a Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>)| {
            let item = Item::new(value.get_ref(), value.span().into(), key, self.notes);
            let below = format!("{}.{}", self.below(key), name.get_ref().escape_debug());
            let title = format!("[{below}]");
            let section = Self::new(Some(item.table()?), item.span, &below, &title, self.notes);
            Some((name.get_ref().as_ref(), section))
        };
        let sections: Vec<Option<_>> = item.table()?.iter().map(section).collect();
        let mut named = sections.into_iter().collect::<Option<Vec<_>>>()?;
        named.sort_by_key(|(_, section)| section.header);
        Some(named)
    }

    /// The tables of a list, `[[key]]`.
    pub(super) fn sections(&self, key: &'static str) -> Vec<Section<'a>> {
        self.shape(key, || Shape::Tables);
        let name = self.below(key);
        let title = format!("[[{name}]]");
        let section = |item: &Item<'a>| {
            let table = Some(item.table()?);
            Some(Self::new(table, item.span, &name, &title, self.notes))
        };
        let items = match self.item(key) {
            Some(item) if item.is_table() => {
                item.refuse(
                    format!("[{name}] stands for one table, and there may be many"),
                    title.clone(),
                );
                Vec::new()
            }
            Some(item) => item.list().unwrap_or_default(),
            None => Vec::new(),
        };
        items.iter().filter_map(section).collect()
    }

    /// Refuses keys that do not exist yet.
    pub(super) fn later(&self, keys: &[&'static str]) {
        for key in keys {
            if let Some(span) = self.key_span(key) {
                let problem = format!("`{key}` is not supported yet");
                self.notes.error(span, problem, "leave it out");
            }
        }
        self.refused.borrow_mut().extend(keys);
    }

    /// Where a key of the file is.
    pub(super) fn key_span(&self, key: &str) -> Option<Span> {
        let (name, _) = self.table?.get_key_value(key)?;
        Some(name.span().into())
    }

    /// Where a key's value is, or else the table.
    pub(super) fn value_span(&self, key: &str) -> Span {
        let value = self.table.and_then(|table| table.get(key));
        value.map_or(self.header, |value| value.span().into())
    }

    /// Refuses whatever was not asked for.
    pub(super) fn finish(&self) {
        let (asked, refused) = (self.asked.borrow(), self.refused.borrow());
        for (key, _) in self.table.into_iter().flatten() {
            let name: &str = key.get_ref();
            if !asked.contains(&name) && !refused.contains(&name) {
                let problem = format!("unknown key {}{}", quoted(name), self.inside());
                self.notes
                    .error(key.span().into(), problem, suggestion(name, &asked));
            }
        }
    }

    fn below(&self, key: &str) -> String {
        match self.name.is_empty() {
            true => key.to_owned(),
            false => format!("{}.{key}", self.name),
        }
    }

    fn inside(&self) -> String {
        match self.title.is_empty() {
            true => String::new(),
            false => format!(" in {}", self.title),
        }
    }
}
