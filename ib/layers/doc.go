// Package layers presents RoCE and InfiniBand packets as gopacket layers.
//
// Importing it registers them: RoCEv2 behind UDP port 4791, RoCEv1 behind
// EtherType 0x8915, native InfiniBand in the link types ERF (197) and InfiniBand
// (247). gopacket.NewPacket then finds, in wire order,
//
//	Ethernet ... UDP      BTH  extended headers  MAD or payload  ICRC
//	Ethernet GRH          BTH  extended headers  MAD or payload  ICRC
//	ERF LRH [GRH]         BTH  extended headers  MAD or payload  ICRC
//
// The formats are those of packages ib and ib/mad, but for those of the link
// layer of native InfiniBand. A packet whose transport header makes no sense
// still has a BTH, which says what is wrong, and an ICRC. What a capture has cut
// off is not made up: the ICRC of such a packet is not judged.
//
// Layers are for decoding; none can be serialized. They are values of their own
// that point into the packet's bytes, as those of gopacket do.
package layers
