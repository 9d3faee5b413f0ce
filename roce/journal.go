package roce

import (
	"context"
	"log/slog"
	"time"

	"github.com/goroce/goroce/transport"
)

// journal tells Config.Logger what happens while locks are held: a goroutine of its
// own does, in order. Without a logger that listens there is neither.
type journal struct {
	handler slog.Handler // nil: nobody listens
	level   slog.Level   // the least that is listened to
	box     *mailbox[slog.Record]
	quit    chan struct{}
	ended   chan struct{}
}

// maxNotes is how many records wait; more are counted as drop_log.
const maxNotes = 1024

// startJournal starts the journal of a device, whose attributes each record has.
func (d *Device) startJournal() {
	j := &d.journal
	h := d.cfg.Logger.Handler()
	switch ctx := context.Background(); {
	case h.Enabled(ctx, slog.LevelDebug):
		j.level = slog.LevelDebug
	case h.Enabled(ctx, slog.LevelInfo):
		j.level = slog.LevelInfo
	case h.Enabled(ctx, slog.LevelWarn):
		j.level = slog.LevelWarn
	default:
		return
	}
	j.handler = h.WithAttrs([]slog.Attr{slog.String("name", d.cfg.Name), slog.Any("addr", d.addr)})
	j.box, j.quit, j.ended = newMailbox[slog.Record](), make(chan struct{}), make(chan struct{})
	go j.run()
}

func (j *journal) run() {
	defer close(j.ended)
	for {
		r, err := j.box.next(context.Background(), j.quit, nil)
		if err != nil {
			return // closed, and nothing is left
		}
		j.handler.Handle(context.Background(), r)
	}
}

// close tells what is left and ends the goroutine.
func (j *journal) close() {
	if j.handler != nil {
		close(j.quit)
		<-j.ended
	}
}

// Listens reports whether Note of a level comes to anything.
func (d *Device) Listens(level slog.Level) bool {
	return d.journal.handler != nil && level >= d.journal.level
}

// Note tells Config.Logger something, with the device's name and address. It may be
// called with any lock held, by packages that build on devices: a goroutine of the
// device calls the logger, in order, until Close. Up to 1024 records wait, others are
// counted as drop_log.
func (d *Device) Note(level slog.Level, what string, attrs ...slog.Attr) {
	if !d.Listens(level) {
		return
	}
	r := slog.NewRecord(time.Now(), level, what, 0)
	r.AddAttrs(attrs...)
	if !d.journal.box.push(r, maxNotes) {
		d.port.first().count(dropLog)
	}
}

// noteEvent tells of an asynchronous event: those that end something are warnings.
func (d *Device) noteEvent(a AsyncEvent) {
	level := slog.LevelInfo
	switch a.Type {
	case EventQPFatal, EventQPReqErr, EventQPAccessErr, EventPathMigErr, EventCQErr, EventSRQErr, EventDeviceFatal, EventPortErr:
		level = slog.LevelWarn
	case EventCommEst:
		level = slog.LevelDebug
	}
	if a.QP != nil {
		d.Note(level, a.Type.String(), slog.String("qpn", a.QP.num.String()))
	} else {
		d.Note(level, a.Type.String())
	}
}

// becomes returns what tells changes of the queue pair's state, of the error states on level
// Info. It is nil when nobody listens.
func (q *QP) becomes() func(from, to transport.State) {
	if !q.dev.Listens(slog.LevelInfo) {
		return nil
	}
	return func(from, to transport.State) {
		level := slog.LevelDebug
		if to == StateErr || to == StateSQE {
			level = slog.LevelInfo
		}
		q.dev.Note(level, "queue pair changes its state", slog.String("qpn", q.num.String()), slog.String("type", q.typ.String()),
			slog.String("from", from.String()), slog.String("to", to.String()))
	}
}
