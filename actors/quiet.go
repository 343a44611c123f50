package actors

// The messages of the contract are silent as dead letters, also in an ActorSystem that belongs to the host: see Quiet.

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Commit) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Announce) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Poke) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Settlements) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (AwaitInstance) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (RunSteps) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (StepsEnded) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (CancelStep) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (CancelRequested) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (CancelsRequested) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (ListRunning) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Running) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Drain) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Flush) IgnoreDeadLetterLogging() {}
