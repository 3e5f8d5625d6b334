/**
 * What both the chat page and the console say of questions and answers, in German, and what the server says of them.
 *
 * @type {import("../../js/language.js").Catalogue}
 */
export default {
  "A rule of this server has taken something out of the answer, which has lost its form by that.": "Eine Regel dieses Servers hat etwas aus der Antwort entfernt, die dadurch ihre Form verloren hat.",
  "More answers are being written at once than the server allows. Wait until one has ended.": "Es werden mehr Antworten zugleich geschrieben, als der Server erlaubt. Bitte warten, bis eine fertig ist.",
  "No model can answer at the moment.": "Im Moment kann kein Modell antworten.",
  "The connection was away for too long: the rest of this answer is no longer on the server.": "Die Verbindung war zu lange unterbrochen: Der Rest dieser Antwort ist nicht mehr auf dem Server.",
  "The connection was lost each time before the answer began.": "Die Verbindung ist jedes Mal abgebrochen, bevor die Antwort begann.",
  "This adapter is being taken out of service. Choose another one below.": "Dieser Adapter wird gerade außer Betrieb genommen. Bitte unten einen anderen wählen.",
  "This question is much larger than is usual for this key, or comes much sooner.": "Diese Frage ist viel größer, als es für diesen Schlüssel üblich ist, oder kommt viel früher.",
  "This key may not ask questions. Reload the page to enter another one.": "Dieser Schlüssel darf keine Fragen stellen. Bitte die Seite neu laden und einen anderen eingeben.",
  "More is being asked than the models can answer at the moment.": "Es wird gerade mehr gefragt, als die Modelle beantworten können.",
  "Your organisation has as many pages open as it may at once. Close one.": "Die Organisation hat so viele Seiten gleichzeitig offen, wie sie darf. Bitte eine schließen.",
  "Too many wrong keys have come from here.": "Von hier sind zu viele falsche Schlüssel gekommen.",
  "The model that was answering failed. What it said so far is kept; ask again.": "Das Modell ist beim Antworten ausgefallen. Der bisherige Text bleibt; bitte noch einmal fragen.",
  "The page was reloaded before the answer began.": "Die Seite wurde neu geladen, bevor die Antwort begann.",
  "The server does not know this key. Reload the page to enter another one.": "Der Server kennt diesen Schlüssel nicht. Die Seite neu laden, um einen anderen einzugeben.",
  "The server does not know who asks. Reload the page to sign in or to enter a key.": "Der Server weiß nicht, wer fragt. Die Seite neu laden, um sich anzumelden oder einen Schlüssel einzugeben.",
  "The server has made a mistake, which its log explains. Ask again.": "Im Server ist ein Fehler aufgetreten, den sein Protokoll erklärt. Bitte noch einmal fragen.",
  "The server is restarting. Ask again in a moment.": "Der Server startet neu. Bitte gleich noch einmal fragen.",
  "The server that was answering is gone. What it said so far is kept; ask again.": "Der antwortende Server ist weg. Der bisherige Text bleibt; bitte noch einmal fragen.",
  "There is no stored answer to this question, and the settings allow no other.": "Zu dieser Frage gibt es keine gespeicherte Antwort, und die Einstellungen erlauben keine andere.",
  "This conversation has become longer than the model can read.": "Dieser Chat ist länger geworden, als das Modell lesen kann.",
  "This model is not there, or this key may not use it. Choose another one below.": "Dieses Modell gibt es nicht, oder dieser Schlüssel darf es nicht nutzen. Bitte unten ein anderes wählen.",
  "This question and the longest answer to it are more than this key may ever use at once.": "Diese Frage und die längste Antwort darauf sind mehr, als dieser Schlüssel je auf einmal nutzen darf.",
  "This question is too long for the server.": "Diese Frage ist für den Server zu lang.",
  "You are not signed in any more. Reload the page to sign in again.": "Die Anmeldung ist abgelaufen. Die Seite neu laden, um sich wieder anzumelden.",
  "{message}": "Der Server meldet auf Englisch: {message}",
  "Try again in {seconds} s.": "In {seconds} s noch einmal versuchen.",
  "Try again at {time}.": "Um {time} Uhr noch einmal versuchen.",
  "Try again on {day} at {time}.": "Am {day} um {time} Uhr noch einmal versuchen.",
  "As many answers as {whose} limit allows are being written. Wait until one has ended.": "Es werden schon so viele Antworten geschrieben, wie das Limit {whose} erlaubt. Bitte warten, bis eine fertig ist.",
  "{whose} budget of this month is spent.": "Das Budget {whose} für diesen Monat ist ausgegeben.",
  "{whose} budget of today is spent.": "Das Budget {whose} für heute ist ausgegeben.",
  "{whose} questions of this minute are used up.": "Die Fragen {whose} für diese Minute sind aufgebraucht.",
  "{whose} share of text to read is used up for this minute.": "Das Lesekontingent {whose} für diese Minute ist aufgebraucht.",
  "{whose} share of text to write is used up for this minute.": "Das Schreibkontingent {whose} für diese Minute ist aufgebraucht.",
  "this adapter's": "dieses Adapters",
  "this key's": "dieses Schlüssels",
  "this model's": "dieses Modells",
  "this {kind}'s": "({kind})",
  "your": "dieses Kontos",
  "your organisation's": "der Organisation",
  "Calls {name}": "Ruft {name} auf",
  "Image": "Bild",
  "Image: {name}": "Bild: {name}",
  "Text": "Text",
  "Choices, one a line": "Auswahl, eine je Zeile",
  "Grammar, in Lark's notation or as GBNF": "Grammatik, in der Schreibweise von Lark oder als GBNF",
  "JSON schema": "JSON-Schema",
  "JSON that matches a schema": "JSON nach einem Schema",
  "One of these choices": "Eines aus einer Auswahl",
  "Regular expression": "Regulärer Ausdruck",
  "Text of a grammar": "Text nach einer Grammatik",
  "Text that matches a pattern": "Text nach einem Muster",
  "The schema is no JSON object, as in {\"type\": \"object\"}.": "Das Schema ist kein JSON-Objekt wie {\"type\": \"object\"}.",
  "The schema is no JSON: {reason}.": "Das Schema ist kein JSON: {reason}.",
  "{what}: nothing is given.": "{what}: Hier fehlt etwas.",
  "Copy": "Kopieren",
  "text": "Text",
};

/**
 * What the server says itself: why the router chose a tier, why a key or a question is refused.
 *
 * @type {import("../../js/language.js").Sentences}
 */
export const said = {
  "small": "klein",
  "medium": "mittel",
  "large": "groß",

  // What the tiers are worth
  "complexity {score} {price}asks for the {tier} tier": "Komplexität {score} verlangt {price}die Stufe {tier}",
  "at this price of quality ": "bei diesem Preis der Qualität ",
  "expected to be answered well: {shares}; at this price of quality that asks for {tier}": "voraussichtlich gut beantwortet: {shares}; das verlangt bei diesem Preis der Qualität {tier}",
  "it is unlike the questions that success was learnt from": "die Frage gleicht keiner von denen, aus denen der Erfolg gelernt wurde",
  "little is known of requests like this one: the {tier} tier": "über solche Anfragen ist wenig bekannt: Stufe {tier}",
  "the {tier} tier was drawn, to see how it does": "Stufe {tier} wurde ausgelost, um zu sehen, wie sie sich macht",
  "{unknown}tiers get fixed shares of requests, whatever they ask, and this one goes to {tier}": "{unknown}die Stufen bekommen feste Anteile aller Anfragen, und diese geht an {tier}",
  "not calibrated for these models: ": "für diese Modelle nicht kalibriert: ",

  // What makes a question complex
  "{sign} (+{contribution})": "{sign} (+{contribution})",
  "asks for an explanation or comparison": "verlangt eine Erklärung oder einen Vergleich",
  "asks how to do something": "fragt, wie etwas geht",
  "contains a calculation": "enthält eine Rechnung",
  "contains code": "enthält Code",
  "continues a conversation": "setzt ein Gespräch fort",
  "has several parts": "hat mehrere Teile",
  "is a question": "ist eine Frage",
  "its length": "ihre Länge",
  "sets conditions": "stellt Bedingungen",
  "uses technical terms": "benutzt Fachwörter",
  "wants something written or worked out": "will etwas geschrieben oder ausgearbeitet haben",

  // What changed the choice
  "its server takes messages: counts are estimates until the end, and an answer that is lost does not go on elsewhere": "ihr Server nimmt Nachrichten: Zahlen sind bis zum Ende geschätzt, und eine verlorene Antwort geht nirgends weiter",
  "the conversation has used the {tier} tier and does not go below it": "der Chat hat die Stufe {tier} benutzt und geht nicht darunter",
  "the prompt does not fit the {tier} tier's context": "der Text passt nicht in den Kontext der Stufe {tier}",
  "the {busy} tier has a queue, the {tier} tier answers sooner": "vor Stufe {busy} wird gewartet, Stufe {tier} antwortet früher",
  "the {closed} tier is not open to this request, the {tier} tier is next": "Stufe {closed} steht dieser Anfrage nicht offen, Stufe {tier} ist die nächste",
  "the {tier} tier is asleep; the turn waits for an engine": "Stufe {tier} schläft; die Frage wartet auf eine Engine",
  "the {wanted} tier {state}, the {tier} tier stands in": "Stufe {wanted} {state}, Stufe {tier} springt ein",
  "{replica} did not answer, {other} stands in": "{replica} hat nicht geantwortet, {other} springt ein",
  "could not be fetched yet": "konnte noch nicht geladen werden",
  "cannot do what {field} asks for": "kann nicht, was {field} verlangt",
  "cannot hold the prompt": "kann den Text nicht fassen",
  "is asleep": "schläft",
  "is below the {tier} tier, which the conversation has used": "liegt unter Stufe {tier}, die der Chat benutzt hat",
  "is coming: {percent} % of {size} MB": "kommt: {percent} % von {size} MB",
  "is full": "ist voll",
  "is not available": "ist nicht verfügbar",
  "is not open to this request": "steht dieser Anfrage nicht offen",
  "is out of service: its checkpoint cannot be used": "ist außer Betrieb: ihr Checkpoint ist nicht brauchbar",
  "is starting": "startet",

  // Names
  "it is an adapter of {model}": "das ist ein Adapter von {model}",
  "the name {route} leads this conversation to {model}": "der Name {route} führt diesen Chat zu {model}",
  "the request names {name}": "die Anfrage nennt {name}",

  // The cache
  "the same request is being answered by the {tier} tier: that answer is given here too": "dieselbe Anfrage wird gerade von Stufe {tier} beantwortet: Diese Antwort gilt auch hier",
  "the same request was answered by the {tier} tier before: that answer is given again": "dieselbe Anfrage hat Stufe {tier} schon beantwortet: Diese Antwort gilt wieder",

  // Who asks
  "incorrect API key; check that it is whole, or ask for a new one": "Dieser API-Schlüssel ist falsch. Bitte prüfen, ob er vollständig ist, oder einen neuen besorgen.",
  "the API key of this connection was deleted; connect with another one": "Dieser API-Schlüssel wurde gelöscht. Bitte einen anderen verwenden.",
  "the identity provider of this session is not trusted any more": "Dem Identitätsanbieter dieser Anmeldung wird nicht mehr vertraut.",
  "the tenant of this key or token is disabled or does not exist": "Die Organisation dieses Schlüssels ist deaktiviert oder existiert nicht.",
  "the token of this connection has expired; connect with a new one": "Die Anmeldung ist abgelaufen. Bitte neu anmelden.",
  "the user of this API key is disabled": "Das Konto dieses API-Schlüssels ist deaktiviert.",
  "the user of this token is disabled": "Dieses Konto ist deaktiviert.",
  "this API key has expired; use the one that replaces it": "Dieser API-Schlüssel ist abgelaufen. Bitte den verwenden, der ihn ersetzt.",
  "this API key is disabled": "Dieser API-Schlüssel ist deaktiviert.",
  "this key or token lacks the scope '{scope}'; use one that has it": "Dieser Schlüssel hat das Recht „{scope}“ nicht. Bitte einen verwenden, der es hat.",
  "you are not signed in any more; sign in again": "Die Anmeldung ist abgelaufen. Bitte neu anmelden.",
  "too many wrong API keys or tickets came from your address; wait, and correct the key": "Von dieser Adresse kamen zu viele falsche API-Schlüssel. Bitte warten und den Schlüssel berichtigen.",

  // What a rule refuses
  "this request's {what} is far above what this key usually sends; slow down": "Diese Anfrage geht weit über das hinaus, was dieser Schlüssel sonst sendet ({what}). Bitte langsamer.",
  "{path}: it holds what this server does not accept ({rule}); leave it out": "Die Frage enthält etwas, das dieser Server nicht annimmt ({rule}). Bitte weglassen. [{path}]",
};
