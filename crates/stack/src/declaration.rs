//! Declaration and resolution: attributes get their offsets, kinds and events their owners.

use std::any::Any;
use std::marker::PhantomData;

use crate::attribute::{Attribute, AttributeInfo, AttributeType, Layout};
use crate::batch::{Kind, PACKET_HEADER_LEN};
use crate::event::{ArgumentEvent, BatchEvent, Bound, Event, Order, built_in_events};
use crate::name::Name;

/// Why the micro-protocols of a recipe do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Clash {
    /// Two micro-protocols declare the same attribute.
    #[error("{second} declares the attribute `{attribute}`, which the stack already has")]
    Attribute {
        /// Name of the attribute.
        attribute: &'static str,
        /// Micro-protocol that declared it second.
        second: String,
    },
    /// Two micro-protocols claim the same kind of control packet.
    #[error("{second} claims packets of kind {kind}, which belong to {first}")]
    Kind {
        /// Number of the kind.
        kind: u8,
        /// Owner of the kind.
        first: String,
        /// Micro-protocol that claimed it second.
        second: String,
    },
    /// A required attribute is missing or has another size.
    #[error("{needs} needs the attribute `{attribute}`, which no micro-protocol of the stack provides")]
    NoAttribute {
        /// Name of the attribute.
        attribute: &'static str,
        /// Micro-protocol that requires it.
        needs: String,
    },
    /// Two micro-protocols use one event name with arguments of different types.
    #[error(
        "{second} declares the event `{event}` with another argument type than an earlier micro-protocol"
    )]
    Event {
        /// Name of the event.
        event: &'static str,
        /// Micro-protocol that declared it second.
        second: String,
    },
    /// A micro-protocol's declarations differ from those made when the recipe was checked.
    #[error(
        "a micro-protocol does not declare what it did when the recipe was checked (is the tag of another length?)"
    )]
    Changed,
    /// More clear attributes than the registration announces.
    #[error("{0} declares clear attributes that its registration does not name")]
    Clear(String),
}

/// Tables of a stack: equal for equal recipes, and shared by all stacks of one recipe.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) names: Vec<String>,
    pub(crate) layout: Layout,
    /// Owner of each kind of control packet.
    pub(crate) kinds: Vec<(Kind, u8)>,
    pub(crate) batch_events: Vec<(&'static str, Bound)>,
    pub(crate) argument_events: Vec<ArgumentEvent>,
    pub(crate) submit: Bound,
    pub(crate) deliver: Bound,
    clear_used: u16,
    pub(crate) clashes: Vec<Clash>,
}

impl Tables {
    pub(crate) fn new(names: Vec<String>, clear_bytes: u16) -> Self {
        let header = PACKET_HEADER_LEN as u16;
        let clear_len = header + clear_bytes;
        Self {
            names,
            layout: Layout { clear_len, data_len: clear_len, tag_len: 0, attributes: Vec::new() },
            batch_events: BatchEvent::BUILT_IN.map(|name| (name, Vec::new())).to_vec(),
            argument_events: built_in_events().to_vec(),
            clear_used: header,
            ..Self::default()
        }
    }

    pub(crate) fn finish(&mut self) {
        let batches = self.batch_events.iter_mut().map(|event| &mut event.1);
        let arguments = self.argument_events.iter_mut().map(|event| &mut event.bound);
        for list in batches.chain(arguments).chain([&mut self.submit, &mut self.deliver]) {
            list.sort();
            list.shrink_to_fit();
        }
        if self.clear_used != self.layout.clear_len {
            let declared = self.names.first().cloned().unwrap_or_default();
            self.clashes.push(Clash::Clear(declared));
        }
    }

    /// Returns the index of the event of this name, whatever its argument; adds it if there is none.
    fn argument_event(&mut self, event: ArgumentEvent) -> usize {
        let found = self.argument_events.iter().position(|known| known.name == event.name);
        found.unwrap_or_else(|| {
            self.argument_events.push(event);
            self.argument_events.len() - 1
        })
    }

    fn batch_event(&mut self, name: &'static str) -> usize {
        let found = self.batch_events.iter().position(|known| known.0 == name);
        found.unwrap_or_else(|| {
            self.batch_events.push((name, Vec::new()));
            self.batch_events.len() - 1
        })
    }

    /// Returns the event of this name, if a micro-protocol of the stack has declared it.
    pub(crate) fn find_event(&self, event: &ArgumentEvent) -> Option<u16> {
        self.argument_events.iter().position(|known| known.is_same(event)).map(|at| at as u16)
    }
}

/// Handle of a value that several micro-protocols of one stack share; see [`Declaration::shared`].
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

/// Shared values, found by type, in the order of their creation.
#[derive(Default)]
pub(crate) struct SharedValues {
    pub(crate) values: Vec<Box<dyn Any + Send>>,
}

/// The first phase: every micro-protocol declares what it adds.
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
        name: Name<Attribute<T>>,
        offset: u16,
        clear: bool,
    ) -> Attribute<T> {
        let name = name.text();
        if self.tables.layout.attributes.iter().any(|known| known.name == name) {
            let second = self.name();
            self.tables.clashes.push(Clash::Attribute { attribute: name, second });
        }
        let len = T::LEN as u16;
        self.tables.layout.attributes.push(AttributeInfo { name, offset, len, clear });
        Attribute::at(offset)
    }

    /// Declares an attribute of every data packet, encrypted.
    pub fn attribute<T: AttributeType>(&mut self, name: Name<Attribute<T>>) -> Attribute<T> {
        let offset = self.tables.layout.data_len;
        self.tables.layout.data_len += T::LEN as u16;
        self.new_attribute(name, offset, false)
    }

    /// Declares an attribute of every packet, including control packets, readable without keys. Its length
    /// must be announced in the registration
    /// ([`Registration::clear_bytes`](crate::Registration::clear_bytes)).
    pub fn clear_attribute<T: AttributeType>(&mut self, name: Name<Attribute<T>>) -> Attribute<T> {
        let offset = self.tables.clear_used;
        self.tables.clear_used += T::LEN as u16;
        if self.tables.clear_used > self.tables.layout.clear_len {
            let declared = self.name();
            self.tables.clashes.push(Clash::Clear(declared));
        }
        self.new_attribute(name, offset, true)
    }

    /// Reserves `len` bytes after the payload of every packet.
    pub fn tag(&mut self, len: usize) {
        self.tables.layout.tag_len += len as u16;
    }

    /// Claims control packets of this kind for this micro-protocol.
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

    /// Assigns a kind of control packet to a micro-protocol from outside this project. Equal recipes yield
    /// equal kinds.
    pub fn user_kind(&mut self) -> Kind {
        let used = self.tables.kinds.iter().filter(|known| known.0 >= Kind::FIRST_USER).count();
        self.kind(Kind(Kind::FIRST_USER.0 + used as u8))
    }

    /// Returns a value shared by the micro-protocols of the stack. The first that requests it creates it.
    pub fn shared<T: Any + Send>(&mut self, make: impl FnOnce() -> T) -> SharedValue<T> {
        let values = &mut self.shared.values;
        let found = values.iter().position(|known| known.is::<T>());
        let index = found.unwrap_or_else(|| {
            values.push(Box::new(make()));
            values.len() - 1
        });
        SharedValue::at(index)
    }

    /// Returns the event of this name, which carries a `T`. The same name yields every micro-protocol the
    /// same event.
    pub fn event<T: 'static>(&mut self, name: Name<Event<T>>) -> Event<T> {
        let event = ArgumentEvent::new(name);
        let place = self.tables.argument_event(event.clone());
        if !self.tables.argument_events[place].is_same(&event) {
            let second = self.name();
            self.tables.clashes.push(Clash::Event { event: event.name, second });
        }
        Event::with_id(place as u16)
    }

    /// Returns the event of this name, which carries a batch.
    pub fn batch_event(&mut self, name: Name<BatchEvent>) -> BatchEvent {
        BatchEvent(self.tables.batch_event(name.text()) as u16)
    }
}

/// The second phase: handlers are bound, and other micro-protocols' attributes are looked up.
#[derive(Debug)]
pub struct Resolution<'d> {
    pub(crate) owner: u8,
    pub(crate) tables: &'d mut Tables,
}

impl Resolution<'_> {
    /// Binds this micro-protocol's `on_batch` to `event`.
    pub fn on_batch(&mut self, event: BatchEvent, order: Order) {
        self.tables.batch_events[usize::from(event.0)].1.push((order, self.owner));
    }

    /// Binds this micro-protocol's `on_event` to `event`.
    pub fn on_event<T: 'static>(&mut self, event: Event<T>, order: Order) {
        self.tables.argument_events[usize::from(event.id)].bound.push((order, self.owner));
    }

    /// Binds this micro-protocol's `on_submit` to messages from the user.
    pub fn on_submit(&mut self, order: Order) {
        self.tables.submit.push((order, self.owner));
    }

    /// Binds this micro-protocol's `on_delivery` to messages to the user.
    pub fn on_delivery(&mut self, order: Order) {
        self.tables.deliver.push((order, self.owner));
    }

    /// Returns another micro-protocol's attribute, if the stack has it with this type.
    pub fn find_attribute<T: AttributeType>(&self, name: Name<Attribute<T>>) -> Option<Attribute<T>> {
        let known = self.tables.layout.attributes.iter().find(|known| known.name == name.text())?;
        (usize::from(known.len) == T::LEN).then(|| Attribute::at(known.offset))
    }

    /// As [`Resolution::find_attribute`], for a required attribute: building the stack fails without it.
    pub fn attribute<T: AttributeType>(&mut self, name: Name<Attribute<T>>) -> Attribute<T> {
        self.find_attribute(name).unwrap_or_else(|| {
            let needs = self.tables.names[usize::from(self.owner)].clone();
            self.tables.clashes.push(Clash::NoAttribute { attribute: name.text(), needs });
            Attribute::at(0)
        })
    }

    /// Whether the stack has a micro-protocol of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tables.names.iter().any(|known| known == name)
    }
}
