package rdmacm

import "github.com/goroce/goroce/roce"

// Left returns how many connections and requests the manager of a device's port
// knows, in any state.
func Left(d *roce.Device) int {
	m, err := managerOf(d)
	if err != nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ids, _ := m.agent.Len()
	return max(ids, len(m.owners))
}
