"""A verbs peer on an RDMA device: JSON requests on standard input, one per line, JSON answers on standard output.

The requests are described in wire/verbs.go, which the other peer shares. Memory contents are SHAKE128 of a seed.
It runs in the guest with pyverbs 44 (Debian 12) or later; ATOMIC_WRITE and FLUSH need 45.
"""
import ctypes
import hashlib
import json
import mmap
import os
import select
import sys
import time

from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

DEVICE = 'rxe0'
PORT = 1
PMEM_ALIGN = 2 << 20
GIDS = '/sys/class/infiniband/%s/ports/%d/gids/%d'

ACCESS = {
    'local_write': e.IBV_ACCESS_LOCAL_WRITE,
    'remote_write': e.IBV_ACCESS_REMOTE_WRITE,
    'remote_read': e.IBV_ACCESS_REMOTE_READ,
    'remote_atomic': e.IBV_ACCESS_REMOTE_ATOMIC,
    'mw_bind': e.IBV_ACCESS_MW_BIND,
}
VERBS = {
    'SEND': e.IBV_WR_SEND,
    'SEND_IMM': e.IBV_WR_SEND_WITH_IMM,
    'WRITE': e.IBV_WR_RDMA_WRITE,
    'WRITE_IMM': e.IBV_WR_RDMA_WRITE_WITH_IMM,
    'READ': e.IBV_WR_RDMA_READ,
    'SEND_INV': e.IBV_WR_SEND_WITH_INV,
    'BIND_MW': e.IBV_WR_BIND_MW,
    'LOCAL_INV': e.IBV_WR_LOCAL_INV,
    'FETCH_ADD': e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    'CMP_SWAP': e.IBV_WR_ATOMIC_CMP_AND_SWP,
}
OPCODES = {
    e.IBV_WC_SEND: 'SEND',
    e.IBV_WC_RDMA_WRITE: 'WRITE',
    e.IBV_WC_RDMA_READ: 'READ',
    e.IBV_WC_BIND_MW: 'BIND_MW',
    e.IBV_WC_LOCAL_INV: 'LOCAL_INV',
    e.IBV_WC_FETCH_ADD: 'FETCH_ADD',
    e.IBV_WC_COMP_SWAP: 'CMP_SWAP',
    e.IBV_WC_RECV: 'RECV',
    e.IBV_WC_RECV_RDMA_WITH_IMM: 'RECV_IMM',
}
# ibv_wc_status_str of the statuses that can occur here.
STATUS = {
    0: 'success', 1: 'local length error', 2: 'local QP operation error', 4: 'local protection error', 5: 'Work Request Flushed Error',
    6: 'memory management operation error',
    9: 'remote invalid request error', 10: 'remote access error', 11: 'remote operation error', 12: 'transport retry counter exceeded',
    13: 'RNR retry counter exceeded',
}
EXTENDED = hasattr(e, 'IBV_WR_FLUSH')
if EXTENDED:
    ACCESS['flush_global'] = e.IBV_ACCESS_FLUSH_GLOBAL
    ACCESS['flush_persistent'] = e.IBV_ACCESS_FLUSH_PERSISTENT
    PLACEMENT = {'flush_global': e.IBV_FLUSH_GLOBAL, 'flush_persistent': e.IBV_FLUSH_PERSISTENT}
    OPCODES[e.IBV_WC_ATOMIC_WRITE] = 'ATOMIC_WRITE'
    OPCODES[e.IBV_WC_FLUSH] = 'FLUSH'
    SEND_OPS = (e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_READ
                | e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_FLUSH)
SERVICES = {'': e.IBV_QPT_RC, 'RC': e.IBV_QPT_RC, 'UC': e.IBV_QPT_UC, 'UD': e.IBV_QPT_UD}
STATES = {
    e.IBV_QPS_RESET: 'RESET', e.IBV_QPS_INIT: 'INIT', e.IBV_QPS_RTR: 'RTR', e.IBV_QPS_RTS: 'RTS',
    e.IBV_QPS_SQD: 'SQD', e.IBV_QPS_SQE: 'SQE', e.IBV_QPS_ERR: 'ERR',
}
EVENTS = {getattr(e, n): n[len('IBV_EVENT_'):] for n in dir(e) if n.startswith('IBV_EVENT_')}


def access(names):
    flags = 0
    for n in names or []:
        flags |= ACCESS[n]
    return flags


def swap32(v):
    """The immediate data of a work request is in network byte order."""
    return int.from_bytes(v.to_bytes(4, 'big'), sys.byteorder)


class Peer:
    def __init__(self):
        self.mrs = {}
        self.mws = {}
        self.qps = {}
        self.srqs = {}
        self.ahs = {}
        self.pmem = None

    def open(self, r):
        self.gid_index = None
        want = gid_text(r['addr'])
        for i in range(64):
            try:
                with open(GIDS % (DEVICE, PORT, i)) as f:
                    if f.read().strip() == want:
                        self.gid_index = i
                        break
            except OSError:
                break
        if self.gid_index is None:
            raise ValueError('%s has no GID %s' % (DEVICE, want))
        self.ctx = Context(name=DEVICE)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 1024)
        self.events_fd = async_fd()
        mtu = 128 << self.ctx.query_port(PORT).active_mtu
        return {'gid': want, 'mtu': mtu}

    def mr(self, r):
        address = None
        if 'flush_persistent' in r.get('access', []):
            address = self.persistent()
        m = MR(self.pd, r['len'], access(r.get('access')), address)
        m.write(bytes(r['len']), r['len'], 0)
        self.mrs[r['mr']] = m
        return {'va': m.buf, 'rkey': m.rkey}

    def persistent(self):
        """The address of the machine's persistent memory, which rxe wants for regions that can be flushed to it."""
        if self.pmem is None:
            fd = os.open('/dev/dax0.0', os.O_RDWR)
            self.pmem = mmap.mmap(fd, PMEM_ALIGN)
            os.close(fd)
        return ctypes.addressof(ctypes.c_char.from_buffer(self.pmem))

    def mw(self, r):
        w = MW(self.pd, e.IBV_MW_TYPE_1 if r['type'] == 1 else e.IBV_MW_TYPE_2)
        self.mws[r['mw']] = w, r['type']
        return {'rkey': w.rkey}

    def bind_info(self, wr):
        s = wr['sges'][0]
        return MWBindInfo(self.mrs[s['mr']], self.mrs[s['mr']].buf + s['off'], s['len'], access(wr.get('access')))

    def srq(self, r):
        self.srqs[r['srq']] = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=r['depth'], max_sge=4)))
        return {}

    def limit(self, r):
        self.srqs[r['srq']].modify(SrqAttr(srq_limit=r['n']), e.IBV_SRQ_LIMIT)
        return {}

    def qp(self, r):
        depth = r.get('depth', 64)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=4, max_recv_sge=4)
        how = {'qp_type': SERVICES[r.get('service', '')], 'scq': self.cq, 'rcq': self.cq, 'srq': self.srqs.get(r.get('srq')), 'cap': cap, 'sq_sig_all': 1}
        if r.get('extended'):
            q = QPEx(self.ctx, QPInitAttrEx(pd=self.pd, send_ops_flags=SEND_OPS, comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, **how))
        else:
            q = QP(self.pd, QPInitAttr(**how))
        self.qps[r['qp']] = q
        return {'qpn': q.qp_num}

    def connect(self, r):
        a = QPAttr(port_num=PORT)
        a.qp_access_flags = access(r.get('access'))
        a.path_mtu = r['mtu'].bit_length() - 8
        a.dest_qp_num = r['dest_qpn']
        a.rq_psn = r.get('rq_psn', 0)
        a.sq_psn = r.get('sq_psn', 0)
        a.max_rd_atomic = a.max_dest_rd_atomic = r.get('rd_atomic', 0)
        a.min_rnr_timer = r.get('min_rnr_timer', 0)
        a.timeout = r.get('ack_timeout', 0)
        a.retry_cnt = r.get('retry', 0)
        a.rnr_retry = r.get('rnr_retry', 0)
        a.qkey = r.get('qkey', 0)
        a.ah_attr = self.path(r)
        self.qps[r['qp']].to_rts(a)
        return {}

    def path(self, r):
        return AHAttr(gr=GlobalRoute(dgid=GID(r['dest_gid']), sgid_index=self.gid_index, hop_limit=64), is_global=1, port_num=PORT)

    def ah(self, r):
        self.ahs[r['ah']] = AH(self.pd, attr=self.path(r))
        return {}

    def fill(self, r):
        n = r.get('len', 0)
        if n:
            self.mrs[r['mr']].write(content(r, n), n, r.get('off', 0))
        return {}

    def check(self, r):
        n = r.get('len', 0)
        if not n:
            return {}
        got = self.mrs[r['mr']].read(n, r.get('off', 0))
        want = content(r, n)
        if got == want:
            return {}
        bad = [i for i in range(n) if got[i] != want[i]]
        return {'bad': len(bad), 'first': bad[0]}

    def setword(self, r):
        self.mrs[r['mr']].write(r.get('word', 0).to_bytes(8, sys.byteorder), 8, r.get('off', 0))
        return {}

    def word(self, r):
        return {'word': int.from_bytes(self.mrs[r['mr']].read(8, r.get('off', 0)), sys.byteorder)}

    def sges(self, wr):
        """pyverbs refuses a request without segments: an empty one stands for none."""
        if not wr.get('sges'):
            m = next(iter(self.mrs.values()))
            return [SGE(m.buf, 0, m.lkey)]
        return [SGE(self.mrs[s['mr']].buf + s['off'], s['len'], self.mrs[s['mr']].lkey) for s in wr['sges']]

    def recv(self, r):
        head = None
        alive = []  # pyverbs keeps no reference to the next request
        for wr in reversed(r['wrs']):
            sg = self.sges(wr)
            head = RecvWR(wr['id'], len(sg), sg, head)
            alive.append(head)
        queue = self.srqs[r['srq']] if r.get('srq') else self.qps[r['qp']]
        queue.post_recv(head)
        return {}

    def send_extended(self, qp, wr):
        """ATOMIC_WRITE and FLUSH exist in the newer way of posting only."""
        qp.wr_start()
        qp.wr_id = wr['id']
        qp.wr_flags = e.IBV_SEND_SIGNALED
        if wr['verb'] == 'FLUSH':
            placement = 0
            for n in wr['access']:
                placement |= PLACEMENT[n]
            qp.wr_flush(wr.get('rkey', 0), wr.get('raddr', 0), wr.get('len', 0), placement, e.IBV_FLUSH_RANGE if wr.get('len') else e.IBV_FLUSH_MR)
        else:
            s = wr['sges'][0]
            qp.wr_atomic_write(wr.get('rkey', 0), wr.get('raddr', 0), self.mrs[s['mr']].read(s['len'], s['off']))
        qp.wr_complete()

    def send(self, r):
        head = None
        alive = []
        answer = {}
        if any(wr['verb'] in ('ATOMIC_WRITE', 'FLUSH') for wr in r['wrs']):
            for wr in r['wrs']:
                if wr['verb'] in ('ATOMIC_WRITE', 'FLUSH'):
                    self.send_extended(self.qps[r['qp']], wr)
                else:
                    self.send({'qp': r['qp'], 'wrs': [wr]})
            return answer
        for wr in reversed(r['wrs']):
            if wr['verb'] == 'BIND_MW':
                mw, kind = self.mws[wr['mw']]
                if kind == 1:
                    self.qps[r['qp']].bind_mw(mw, MWBind(self.bind_info(wr), e.IBV_SEND_SIGNALED, wr['id']))
                    return {'rkey': mw.rkey}
                w = SendWR(wr['id'], opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED, next_wr=head)
                w.set_bind_wr(mw, self.bind_info(wr))
                if head is None:
                    answer = {'rkey': w.rkey}
                head = w
                alive.append(w)
                continue
            if wr['verb'] == 'LOCAL_INV':
                # The key is in the same place as immediate data, but in the order of the host.
                head = SendWR(wr['id'], opcode=e.IBV_WR_LOCAL_INV, imm_data=wr['inv'], send_flags=e.IBV_SEND_SIGNALED, next_wr=head)
                alive.append(head)
                continue
            sg = self.sges(wr)
            w = SendWR(wr['id'], opcode=VERBS[wr['verb']], num_sge=len(sg), imm_data=wr['inv'] if wr['verb'] == 'SEND_INV' else swap32(wr.get('imm', 0)), sg=sg,
                       send_flags=e.IBV_SEND_SIGNALED, next_wr=head)
            if wr.get('ah'):
                w.set_wr_ud(self.ahs[wr['ah']], wr['qpn'], wr.get('qkey', 0))
            if wr['verb'] in ('FETCH_ADD', 'CMP_SWAP'):
                w.set_wr_atomic(wr.get('rkey', 0), wr.get('raddr', 0), wr.get('compare_add', 0), wr.get('swap', 0))
            elif wr['verb'] not in ('SEND', 'SEND_IMM', 'SEND_INV'):
                w.set_wr_rdma(wr.get('rkey', 0), wr.get('raddr', 0))
            head = w
            alive.append(w)
        self.qps[r['qp']].post_send(head)
        return answer

    def poll(self, r):
        found = []
        end = time.monotonic() + r.get('timeout_ms', 0) / 1000
        while len(found) < r['n']:
            n, wcs = self.cq.poll(r['n'] - len(found))
            found += [completion(wc) for wc in wcs]
            if n == 0:
                if time.monotonic() > end:
                    break
                time.sleep(0.0003)
        return {'wcs': found}

    def events(self, r):
        found = []
        end = time.monotonic() + r.get('timeout_ms', 0) / 1000
        while len(found) < r['n']:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.events_fd], [], [], max(left, 0))
            if not ready:
                break
            event = self.ctx.get_async_event()
            found.append(EVENTS.get(event.event_type, str(event.event_type)))
            event.ack()
        return {'events': found}

    def state(self, r):
        attr, _ = self.qps[r['qp']].query(e.IBV_QP_STATE)
        return {'state': STATES[attr.qp_state]}

    def destroy(self, r):
        if r.get('qp'):
            self.qps.pop(r['qp']).close()
        if r.get('mw'):
            self.mws.pop(r['mw'])[0].close()
        if r.get('mr'):
            self.mrs.pop(r['mr']).close()
        if r.get('srq'):
            self.srqs.pop(r['srq']).close()
        if r.get('ah'):
            self.ahs.pop(r['ah']).close()
        return {}


def content(r, n):
    if r.get('seed'):
        return hashlib.shake_128(r['seed'].encode()).digest(n)
    return bytes([r.get('byte', 0)]) * n


def completion(wc):
    c = {'id': wc.wr_id, 'status': wc.status, 'text': STATUS.get(wc.status, 'status %d' % wc.status), 'len': wc.byte_len, 'qpn': wc.qp_num}
    if wc.status == 0:
        c['opcode'] = OPCODES.get(wc.opcode, str(wc.opcode))
        if wc.wc_flags & e.IBV_WC_WITH_IMM:
            c['has_imm'] = True
            c['imm'] = swap32(wc.imm_data)
        if wc.wc_flags & e.IBV_WC_WITH_INV:
            c['has_inv'] = True
            c['inv'] = wc.imm_data
        if wc.wc_flags & e.IBV_WC_GRH:
            c['grh'] = True
            c['src_qp'] = wc.src_qp
    return c


def gid_text(addr):
    """The GID of an IPv4 or IPv6 address as the kernel prints it."""
    import ipaddress
    ip = ipaddress.ip_address(addr)
    packed = ip.packed if ip.version == 6 else b'\0' * 10 + b'\xff\xff' + ip.packed
    return packed.hex(':', 2)


def async_fd():
    """pyverbs has no accessor for the descriptor of asynchronous events: it is the only one of its kind, as no completion channel exists."""
    found = []
    for name in os.listdir('/proc/self/fd'):
        try:
            if 'infinibandevent' in os.readlink('/proc/self/fd/' + name):
                found.append(int(name))
        except OSError:
            pass
    if len(found) != 1:
        raise RuntimeError('%d descriptors for events' % len(found))
    return found[0]


def main():
    peer = Peer()
    for line in sys.stdin:
        r = json.loads(line)
        op = r['op']
        if op == 'quit':
            print('{}', flush=True)
            return
        try:
            if op.startswith('_') or not hasattr(peer, op):
                raise ValueError('unknown request ' + op)
            answer = getattr(peer, op)(r)
        except Exception as err:
            answer = {'err': '%s: %s: %s' % (op, type(err).__name__, err)}
        print(json.dumps(answer), flush=True)


main()
