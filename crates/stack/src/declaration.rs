//! How the parts of a stack get their places: attributes their offsets, kinds and events their owners.

use std::any::Any;
use std::marker::PhantomData;

use crate::attribute::{Attribute, AttributeInfo, AttributeType, Layout};
use crate::batch::{Kind, PACKET_HEADER_LEN};
use crate::event::{BUILT_IN_EVENTS, BatchEvent, Event, Order};

/// Why micro-protocols do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Clash {
    /// Two declare the same attribute.
    #[error("{second} declares the attribute `{attribute}`, which the stack has already")]
    Attribute {
        /// Name of the attribute.
        attribute: &'static str,
        /// Who came second.
        second: String,
    },
    /// Two want the same kind of control packet.
    #[error("{second} claims packets of kind {kind}, which belong to {first}")]
    Kind {
        /// The kind's number.
        kind: u8,
        /// Whose they are.
        first: String,
        /// Who came second.
        second: String,
    },
    /// An attribute that one needs is not there or of another size.
    #[error("{needs} needs the attribute `{attribute}`, which no micro-protocol of the stack brings")]
    NoAttribute {
        /// Name of the attribute.
        attribute: &'static str,
        /// Who needs it.
        needs: String,
    },
    /// A micro-protocol declares now this, now that.
    #[error(
        "a micro-protocol does not declare what it did when the recipe was checked (is the tag of another length?)"
    )]
    Changed,
    /// More clear attributes than the registry said.
    #[error("{0} declares clear attributes that its registration does not name")]
    Clear(String),
}

/// The tables of a stack: equal for equal recipes, and shared by all stacks of one recipe.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) names: Vec<String>,
    pub(crate) layout: Layout,
    /// Owner of each kind of control packet.
    pub(crate) kinds: Vec<(Kind, u8)>,
    pub(crate) batch_events: Vec<(String, Vec<(Order, u8)>)>,
    pub(crate) argument_events: Vec<(String, Vec<(Order, u8)>)>,
    pub(crate) submit: Vec<(Order, u8)>,
    pub(crate) deliver: Vec<(Order, u8)>,
    clear_used: u16,
    pub(crate) clashes: Vec<Clash>,
}

impl Tables {
    pub(crate) fn new(names: Vec<String>, clear_bytes: u16) -> Self {
        let named = |names: &[&str]| names.iter().map(|n| ((*n).to_owned(), Vec::new())).collect();
        let header = PACKET_HEADER_LEN as u16;
        let clear_len = header + clear_bytes;
        Self {
            names,
            layout: Layout { clear_len, data_len: clear_len, tag_len: 0, attributes: Vec::new() },
            batch_events: named(&BatchEvent::BUILT_IN),
            argument_events: named(&BUILT_IN_EVENTS),
            clear_used: header,
            ..Self::default()
        }
    }

    pub(crate) fn finish(&mut self) {
        let lists = self.batch_events.iter_mut().chain(&mut self.argument_events).map(|event| &mut event.1);
        for list in lists.chain([&mut self.submit, &mut self.deliver]) {
            list.sort();
            list.shrink_to_fit();
        }
        if self.clear_used != self.layout.clear_len {
            let declared = self.names.first().cloned().unwrap_or_default();
            self.clashes.push(Clash::Clear(declared));
        }
    }

    fn event(events: &mut Vec<(String, Vec<(Order, u8)>)>, name: &str) -> u16 {
        let found = events.iter().position(|event| event.0 == name);
        let index = found.unwrap_or_else(|| {
            events.push((name.to_owned(), Vec::new()));
            events.len() - 1
        });
        index as u16
    }
}

/// A value that several micro-protocols of one stack use; see [`Declaration::shared`].
pub struct SharedValue<T> {
    pub(crate) index: u16,
    of_type: PhantomData<fn() -> T>,
}

impl<T> SharedValue<T> {
    fn at(index: usize) -> Self {
        Self { index: index as u16, of_type: PhantomData }
    }
}

impl<T> Clone for SharedValue<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedValue<T> {}

impl<T> std::fmt::Debug for SharedValue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedValue({})", self.index)
    }
}

/// Values of any type by type, in the order in which they were asked for.
#[derive(Default)]
pub(crate) struct SharedValues {
    pub(crate) values: Vec<Box<dyn Any + Send>>,
}

/// The first phase: every micro-protocol says what it brings.
pub struct Declaration<'d> {
    pub(crate) owner: u8,
    pub(crate) tables: &'d mut Tables,
    pub(crate) shared: &'d mut SharedValues,
}

impl std::fmt::Debug for Declaration<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Declaration").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Declaration<'_> {
    fn name(&self) -> String {
        self.tables.names[usize::from(self.owner)].clone()
    }

    fn new_attribute<T: AttributeType>(
        &mut self,
        name: &'static str,
        offset: u16,
        clear: bool,
    ) -> Attribute<T> {
        if self.tables.layout.attributes.iter().any(|known| known.name == name) {
            let second = self.name();
            self.tables.clashes.push(Clash::Attribute { attribute: name, second });
        }
        let len = T::LEN as u16;
        self.tables.layout.attributes.push(AttributeInfo { name, offset, len, clear });
        Attribute::at(offset)
    }

    /// An attribute of every data packet, encrypted.
    pub fn attribute<T: AttributeType>(&mut self, name: &'static str) -> Attribute<T> {
        let offset = self.tables.layout.data_len;
        self.tables.layout.data_len += T::LEN as u16;
        self.new_attribute(name, offset, false)
    }

    /// An attribute of every packet, control packets included, readable without keys. Its bytes must be announced
    /// in the registration ([`Registration::clear_bytes`](crate::Registration::clear_bytes)).
    pub fn clear_attribute<T: AttributeType>(&mut self, name: &'static str) -> Attribute<T> {
        let offset = self.tables.clear_used;
        self.tables.clear_used += T::LEN as u16;
        if self.tables.clear_used > self.tables.layout.clear_len {
            let name = self.name();
            self.tables.clashes.push(Clash::Clear(name));
        }
        self.new_attribute(name, offset, true)
    }

    /// Bytes behind the payload of every packet.
    pub fn tag(&mut self, len: usize) {
        self.tables.layout.tag_len += len as u16;
    }

    /// Control packets of this kind go to this micro-protocol.
    pub fn kind(&mut self, kind: Kind) -> Kind {
        let taken = self.tables.kinds.iter().find(|known| known.0 == kind);
        if let Some(&(_, first)) = taken {
            let first = self.tables.names[usize::from(first)].clone();
            let second = self.name();
            self.tables.clashes.push(Clash::Kind { kind: kind.0, first, second });
        } else {
            self.tables.kinds.push((kind, self.owner));
        }
        kind
    }

    /// A kind of control packet for a micro-protocol from outside this project; equal recipes give equal kinds.
    pub fn user_kind(&mut self) -> Kind {
        let used = self.tables.kinds.iter().filter(|known| known.0 >= Kind::FIRST_USER).count();
        self.kind(Kind(Kind::FIRST_USER.0 + used as u8))
    }

    /// A value that several micro-protocols of the stack use, made by the first that asks.
    pub fn shared<T: Any + Send>(&mut self, make: impl FnOnce() -> T) -> SharedValue<T> {
        let values = &mut self.shared.values;
        let found = values.iter().position(|known| known.is::<T>());
        let index = found.unwrap_or_else(|| {
            values.push(Box::new(make()));
            values.len() - 1
        });
        SharedValue::at(index)
    }

    /// The event of this name, which carries a `T`. The same name gives every micro-protocol the same event.
    pub fn event<T: 'static>(&mut self, name: &str) -> Event<T> {
        Event::with_id(Tables::event(&mut self.tables.argument_events, name))
    }

    /// An event of this name that carries a batch.
    pub fn batch_event(&mut self, name: &str) -> BatchEvent {
        BatchEvent(Tables::event(&mut self.tables.batch_events, name))
    }
}

/// The second phase: handlers are bound, and attributes of others are found.
#[derive(Debug)]
pub struct Resolution<'d> {
    pub(crate) owner: u8,
    pub(crate) tables: &'d mut Tables,
}

impl Resolution<'_> {
    /// Calls this micro-protocol's `on_batch` for `event`.
    pub fn on_batch(&mut self, event: BatchEvent, order: Order) {
        self.tables.batch_events[usize::from(event.0)].1.push((order, self.owner));
    }

    /// Calls this micro-protocol's `on_event` for `event`.
    pub fn on_event<T: 'static>(&mut self, event: Event<T>, order: Order) {
        self.tables.argument_events[usize::from(event.id)].1.push((order, self.owner));
    }

    /// Calls this micro-protocol's `on_submit` for messages from the user.
    pub fn on_submit(&mut self, order: Order) {
        self.tables.submit.push((order, self.owner));
    }

    /// Calls this micro-protocol's `on_delivery` for messages to the user.
    pub fn on_delivery(&mut self, order: Order) {
        self.tables.deliver.push((order, self.owner));
    }

    /// Another micro-protocol's attribute, if the stack has it with this type.
    pub fn find_attribute<T: AttributeType>(&self, name: &str) -> Option<Attribute<T>> {
        let known = self.tables.layout.attributes.iter().find(|known| known.name == name)?;
        (usize::from(known.len) == T::LEN).then(|| Attribute::at(known.offset))
    }

    /// As [`Resolution::find_attribute`], for one that cannot be done without: building the stack fails.
    pub fn attribute<T: AttributeType>(&mut self, name: &'static str) -> Attribute<T> {
        self.find_attribute(name).unwrap_or_else(|| {
            let needs = self.tables.names[usize::from(self.owner)].clone();
            self.tables.clashes.push(Clash::NoAttribute { attribute: name, needs });
            Attribute::at(0)
        })
    }

    /// Whether a micro-protocol of this name is in the stack.
    pub fn has(&self, name: &str) -> bool {
        self.tables.names.iter().any(|known| known == name)
    }
}
