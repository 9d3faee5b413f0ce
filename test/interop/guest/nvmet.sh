#!/bin/sh
# nvmet.sh start ADDR FAMILY NQN BYTES: make the kernel an NVMe target on rxe, with a RAM disk of that size.
# nvmet.sh stop NQN: end that, and print the SHA-256 of the disk.
set -eu
nvmet=/sys/kernel/config/nvmet
case $1 in
start)
	modprobe brd rd_nr=1 rd_size=$(($5 / 1024))
	modprobe -a nvmet nvmet-rdma
	[ -d $nvmet ] || mount -t configfs configfs /sys/kernel/config
	mkdir $nvmet/subsystems/"$4" $nvmet/subsystems/"$4"/namespaces/1 $nvmet/ports/1
	cd $nvmet/subsystems/"$4"
	echo 1 >attr_allow_any_host
	echo /dev/ram0 >namespaces/1/device_path
	echo 1 >namespaces/1/enable
	cd $nvmet/ports/1
	echo rdma >addr_trtype
	echo "$3" >addr_adrfam
	echo "$2" >addr_traddr
	echo 4420 >addr_trsvcid
	ln -s $nvmet/subsystems/"$4" subsystems/
	;;
stop)
	rm $nvmet/ports/1/subsystems/"$2"
	rmdir $nvmet/ports/1 $nvmet/subsystems/"$2"/namespaces/1 $nvmet/subsystems/"$2"
	sha256sum </dev/ram0
	modprobe -r nvmet-rdma nvmet brd
	;;
esac
