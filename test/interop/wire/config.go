package wire

// ConfigPath is where the agent finds its GuestConfig in the initial RAM disk; ModuleDir holds the kernel modules beside it.
const (
	ConfigPath = "/goroce.json"
	ModuleDir  = "/mods"
)

// ReadyLine is what the agent prints on the console when it listens.
const ReadyLine = "goroce-agent: listening"

// GuestConfig tells the agent, which is the guest's init, how to set its machine up.
type GuestConfig struct {
	Kernel  string   `json:"kernel"`  // release, as in /lib/modules/RELEASE
	Modules []string `json:"modules"` // files in ModuleDir, in the order of loading, needed to mount the root
	Addrs   []string `json:"addrs"`   // addresses with prefix length for the network device
	MTU     int      `json:"mtu"`     // of the network device
}
