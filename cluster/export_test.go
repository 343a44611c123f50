package cluster

// DialOptions is how peers are dialled, with shorter patience.
var DialOptions = dialOptions
