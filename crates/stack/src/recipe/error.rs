use crate::declaration::Clash;

/// Why a recipe does not make a stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// It is not TOML, or not of a recipe's form.
    #[error("line {line}, column {column}: {message}")]
    Text {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// No micro-protocol has this name.
    #[error("{place}there is no micro-protocol `{name}`{hint}; known are: {known}")]
    Unknown {
        /// The line, if there is one.
        place: String,
        /// The name that the recipe gives.
        name: String,
        /// The nearest name.
        hint: String,
        /// All names.
        known: String,
    },
    /// A micro-protocol stands in the recipe twice.
    #[error("`{0}` is in the recipe twice")]
    Twice(String),
    /// The recipe has no micro-protocols.
    #[error("the recipe is empty; the least that works is fixed_size")]
    Empty,
    /// A micro-protocol has no such parameter.
    #[error("{place}`{protocol}` has no parameter `{parameter}`; it takes: {allowed}")]
    UnknownParameter {
        /// The line, if there is one.
        place: String,
        /// Whose it would be.
        protocol: String,
        /// The name that the recipe gives.
        parameter: String,
        /// What there is.
        allowed: String,
    },
    /// A parameter cannot have this value.
    #[error("{place}`{protocol}.{parameter} = {value}`: {allowed}")]
    Value {
        /// The line, if there is one.
        place: String,
        /// Whose it is.
        protocol: String,
        /// Name of the parameter.
        parameter: String,
        /// What was given.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A micro-protocol lacks another.
    #[error("{protocol} needs {alternatives}")]
    Missing {
        /// Who needs something.
        protocol: String,
        /// One of these.
        alternatives: String,
    },
    /// Two micro-protocols exclude each other.
    #[error("{first} and {second} cannot be in one recipe: {reason}")]
    Conflict {
        /// One.
        first: String,
        /// The micro-protocol that the first excludes.
        second: String,
        /// Why they exclude each other.
        reason: String,
    },
    /// `set` names nothing in the recipe.
    #[error("`{key}` names no parameter of this recipe; write MICRO_PROTOCOL.PARAMETER with one of: {known}")]
    NoSuchPart {
        /// What was named.
        key: String,
        /// What there is.
        known: String,
    },
    /// Declarations contradict each other.
    #[error(transparent)]
    Clash(#[from] Clash),
    /// A micro-protocol could not be made from its parameters.
    #[error("{protocol}: {message}")]
    Unbuildable {
        /// Name of the micro-protocol.
        protocol: String,
        /// What it says of its parameters.
        message: String,
    },
    /// The headers leave no room for data.
    #[error(
        "the attributes take {header} bytes of each packet, which leaves no room in packets of {datagram} bytes"
    )]
    Headers {
        /// Bytes of header and tag.
        header: usize,
        /// Bytes of the smallest packet.
        datagram: usize,
    },
    /// Another change is under way.
    #[error("another change of the recipe is under way; try again when it has ended")]
    Busy,
    /// The stack has failed, by this change or before.
    #[error("the session has ended")]
    Ended,
    /// The recipe does not fit into one packet.
    #[error(
        "the recipe has {len} bytes as text, and {max} fit into a packet while running; leave out defaults"
    )]
    TooLong {
        /// Length of the text, bytes.
        len: usize,
        /// Longest text that is read, bytes.
        max: usize,
    },
    /// What a running session cannot change.
    #[error("{0} cannot be added, removed or changed while a session runs; start a new one")]
    Fixed(&'static str),
    /// The policy of this end objects.
    #[error("this recipe is not permitted: {0}")]
    NotPermitted(String),
    /// The application's own check of recipes has panicked.
    #[error("the check of recipes has panicked: {0}")]
    PolicyPanicked(String),
    /// Other versions of micro-protocols at the other end.
    #[error(
        "the other side has version {theirs} of `{protocol}`, this one has {ours}; install the same release on both"
    )]
    Version {
        /// Name of the micro-protocol.
        protocol: String,
        /// Here.
        ours: u16,
        /// There.
        theirs: u16,
    },
}
