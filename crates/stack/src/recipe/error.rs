use crate::declaration::Clash;

/// Why a recipe cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The text is not TOML, or not a recipe.
    #[error("line {line}, column {column}: {message}")]
    Text {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Description of the error.
        message: String,
    },
    /// An error in a line of the text.
    #[error("line {line}: {error}")]
    Line {
        /// Line, from 1.
        line: usize,
        /// The error.
        error: Box<Self>,
    },
    /// No micro-protocol has this name.
    #[error("there is no micro-protocol `{name}`{hint}; the micro-protocols are: {known}")]
    Unknown {
        /// The name in the recipe.
        name: String,
        /// The most similar name.
        hint: String,
        /// All names.
        known: String,
    },
    /// A micro-protocol occurs twice in the recipe.
    #[error("`{0}` is in the recipe twice")]
    Twice(String),
    /// The recipe has no micro-protocols.
    #[error("the recipe is empty; it needs at least fixed_size")]
    Empty,
    /// A micro-protocol has no such parameter.
    #[error("`{protocol}` has no parameter `{parameter}`; it has: {allowed}")]
    UnknownParameter {
        /// Name of the micro-protocol.
        protocol: String,
        /// The name in the recipe.
        parameter: String,
        /// The parameters that exist.
        allowed: String,
    },
    /// A parameter's value is invalid.
    #[error("`{protocol}.{parameter} = {value}`: {allowed}")]
    Value {
        /// Name of the micro-protocol.
        protocol: String,
        /// Name of the parameter.
        parameter: String,
        /// The invalid value.
        value: String,
        /// Description of valid values.
        allowed: String,
    },
    /// A micro-protocol requires another that is missing.
    #[error("{protocol} needs {alternatives}")]
    Missing {
        /// The micro-protocol that requires another.
        protocol: String,
        /// The alternatives, one of which is required.
        alternatives: String,
    },
    /// Two micro-protocols exclude each other.
    #[error("{first} and {second} cannot be in one recipe: {reason}")]
    Conflict {
        /// The micro-protocol that excludes the other.
        first: String,
        /// The excluded micro-protocol.
        second: String,
        /// Why they exclude each other.
        reason: String,
    },
    /// The key given to `set` names nothing in the recipe.
    #[error("`{key}` is not a parameter of this recipe; write MICRO_PROTOCOL.PARAMETER with one of: {known}")]
    NoSuchPart {
        /// The key.
        key: String,
        /// The micro-protocols in the recipe.
        known: String,
    },
    /// Declarations contradict each other.
    #[error(transparent)]
    Clash(#[from] Clash),
    /// A micro-protocol could not be created from its parameters.
    #[error("{protocol}: {message}")]
    Unbuildable {
        /// Name of the micro-protocol.
        protocol: String,
        /// Its error message.
        message: String,
    },
    /// The headers leave no space for data.
    #[error(
        "the attributes take {header} bytes per packet, which leaves no space in packets of {datagram} bytes"
    )]
    Headers {
        /// Bytes of header and tag.
        header: usize,
        /// Size of the smallest datagram, in bytes.
        datagram: usize,
    },
    /// Another change is in progress.
    #[error("another reconfiguration is in progress; try again when it has finished")]
    Busy,
    /// The stack has failed, before or through this change, or its connection is closing or has ended.
    #[error("the session has ended")]
    Ended,
    /// The recipe does not fit into one packet.
    #[error(
        "the recipe has {len} bytes as text, but {max} fit into a packet while running; leave out defaults"
    )]
    TooLong {
        /// Length of the text, in bytes.
        len: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// A running session cannot change this micro-protocol.
    #[error("{0} cannot be added, removed or changed while a session runs; start a new one")]
    Fixed(&'static str),
    /// A running session cannot carry something else.
    #[error("`{0}` cannot be added or removed while a session runs; start a new one")]
    Carrier(&'static str),
    /// This end's policy forbids the recipe.
    #[error("this recipe is not permitted: {0}")]
    NotPermitted(String),
    /// The application's own check of recipes panicked.
    #[error("the check of recipes has panicked: {0}")]
    PolicyPanicked(String),
    /// The peer has another version of a micro-protocol.
    #[error(
        "the peer has version {theirs} of `{protocol}`, this side has {ours}; install the same release on both"
    )]
    Version {
        /// Name of the micro-protocol.
        protocol: String,
        /// Version here.
        ours: u16,
        /// The peer's version.
        theirs: u16,
    },
}
