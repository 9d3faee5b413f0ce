package layers_test

import (
	"fmt"
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
)

// Importing the package is enough for gopacket to decode RoCE.
func Example() {
	f, err := os.Open("../testdata/rxe/rxe-linux-6.12.pcap")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	reads, wrong := 0, 0
	for packet := range gopacket.NewPacketSource(r, r.LinkType()).Packets() {
		if bth, ok := packet.Layer(layers.LayerTypeBTH).(*layers.BTH); ok && bth.Opcode == ib.OpRCReadRequest {
			if reth := packet.Layer(layers.LayerTypeRETH).(*layers.RETH); reads == 0 {
				fmt.Printf("to %v, PSN %v: %d bytes\n", bth.DestQP, bth.PSN, reth.Length)
			}
			reads++
		}
		if crc, ok := packet.Layer(layers.LayerTypeICRC).(*layers.ICRC); ok && crc.Verdict == layers.Wrong {
			wrong++
		}
	}
	fmt.Println(reads, "READs,", wrong, "wrong ICRCs")
	// Output:
	// to 0x000019, PSN 5362760: 9000 bytes
	// 16 READs, 0 wrong ICRCs
}
