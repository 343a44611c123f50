package messages

// The actor library logs what reaches an actor that has stopped. These messages carry users' data, which has no business in a
// log; the library leaves out what has this method.

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Insert) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*InsertMany) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Signal) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*SignalMany) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Cancel) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Await) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Get) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Hello) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Poke) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Notice) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Inserted) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*InsertedMany) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Signaled) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*SignaledMany) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Cancelled) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Settled) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Got) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*NodeInfo) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (*Refused) IgnoreDeadLetterLogging() {}
